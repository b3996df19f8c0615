"""What operators do with a queue on RabbitMQ, where a queue's messages are seen only by consuming them."""

from __future__ import annotations

from remuda.broker.opening import open_broker
from remuda.model.message import Message

LONG = 66_000
"""More than a consumer of RabbitMQ can ask for at once: its prefetch has 16 bits."""


def test_b22_all_of_a_long_queue_is_taken(clean_url: str) -> None:
    with open_broker(clean_url + "?queue_type=classic&log=no") as broker:
        broker.create_queue("long", type="pull")
        for _ in range(0, LONG, 6_000):
            broker.publish([Message("long", b"") for _ in range(6_000)])
        assert broker.clear("long") == LONG
        assert (broker.queue("long").waiting, broker.queue("long").dead) == (0, LONG)
        assert broker.forget("long") == LONG
        assert broker.queue("long").dead == 0
