"""F7 on RabbitMQ: a single active consumer, and order per key by a partition of queues that have one."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from remuda import Bus
from remuda.broker.opening import open_broker
from remuda.model.errors import Unsupported
from remuda.model.message import Message
from remuda.model.queues.routing import HASHED, Binding
from tests.bus.kit import eventually

SOON = 60.0


def test_f7_one_consumer_is_served_and_the_next_when_it_leaves(clean_url: str) -> None:
    with open_broker(clean_url) as first, open_broker(clean_url + "?log=no") as second:
        first.create_queue("line", single_active_consumer=True)
        one = first.subscribe("line")
        two = second.subscribe("line")
        first.publish([Message("line", b"%d" % number) for number in range(4)])
        for number in range(2):
            delivery = one.receive(timeout=SOON)
            assert delivery is not None
            assert delivery.bodies == [b"%d" % number]
            assert two.receive(timeout=0.05) is None
            delivery.ack()
        one.close()
        delivery = two.receive(timeout=SOON)
        assert delivery is not None
        assert delivery.bodies == [b"2"]
        with pytest.raises(Unsupported, match="single active consumer"):
            first.pull("line")
        with pytest.raises(Unsupported, match="single_active_consumer"):
            first.configure_queue("line", single_active_consumer=False)


def test_f1_a_partition_keeps_the_order_of_each_key(clean_url: str) -> None:
    parts = [f"part-{number}" for number in range(3)]
    handled: list[tuple[str, int]] = []
    with ExitStack() as stack:
        for at in range(2):
            bus = stack.enter_context(Bus(clean_url + ("?log=no" if at else "")))
            for part in parts:

                @bus.subscribe("orders.paid", queue=part, single_active_consumer=True)
                def handle(body: tuple[str, int]) -> None:
                    handled.append(body)

            bus.start()
        by_key = {HASHED: "customer"}
        bus.broker.create_router("orders", "consistent-hash", [Binding(queue=part, arguments=by_key) for part in parts])
        keys = "abcdefgh"
        for number in range(5):
            for key in keys:
                body = b'["%s", %d]' % (key.encode(), number)
                message = Message("orders.paid", body, headers={"customer": key}, mime_type="application/json")
                bus.broker.route("orders", message)
        eventually(lambda: len(handled) == 5 * len(keys), SOON)
        for key in keys:
            assert [number for own, number in handled if own == key] == [0, 1, 2, 3, 4]
