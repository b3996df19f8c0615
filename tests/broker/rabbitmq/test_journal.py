"""The journal of definitions: whoever reads it leaves it as it was."""

from __future__ import annotations

from remuda import open_broker
from remuda.amqp.connection import Connection
from remuda.broker.rabbitmq.journal import CHANGES
from tests.bus.kit import eventually


def test_reading_definitions_adds_none(clean_url: str) -> None:
    with open_broker(clean_url) as broker:
        broker.create_queue("orders")
    with Connection(clean_url) as connection:
        channel = connection.channel()
        before = channel.declare_queue(CHANGES, passive=True).message_count
        for _ in range(3):
            with open_broker(clean_url) as broker:
                assert "orders" in [info.name for info in broker.queues()]
        eventually(lambda: channel.declare_queue(CHANGES, passive=True).message_count == before, 30)
