"""T2: subscribers in process own channels, beside the workers who compete on queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from remuda import Bus
from remuda.model.errors import ConsumersFull
from tests.bus.kit import eventually, running


@pytest.fixture
def bus() -> Bus:
    return Bus()


def test_each_subscriber_gets_everything_under_its_prefixes(bus: Bus) -> None:
    """T2: each channel has its own state, and the bus's queues theirs."""
    handled: list[int] = []
    bus.subscribe("fruit.*", queue="workers")(lambda body: handled.append(body))
    with (
        running(bus),
        bus.broker.channel("ann", ["fruit"]) as ann,
        bus.broker.channel("ben", ["fruit.sour", "nut"]) as ben,
    ):
        lemon = bus.publish("fruit.sour", 1)
        bus.publish("fruit.sweet", 2)
        bus.publish("fruits.sour", 3)
        bus.publish("nut", 4)
        first = ann.receive("60s")
        assert first is not None
        assert first.bodies == [b"1"]
        first.ack()
        second = ann.receive("60s")
        assert second is not None
        assert second.bodies == [b"2"]
        sour = ben.receive("60s")
        assert sour is not None
        assert sour.bodies == [b"1"]
        eventually(lambda: sorted(handled) == [1, 2])
        states = {view.queue: view.state.value for view in bus.broker.message(lemon).queues}
        assert states == {"workers": "X", "ann": "X", "ben": "F"}
        sour.ack()
        nut = ben.receive("60s")
        assert nut is not None
        assert nut.bodies == [b"4"]


def test_a_channel_belongs_to_one_subscriber(bus: Bus) -> None:
    """T2"""
    with bus.broker.channel("ann", ["fruit"]), pytest.raises(ConsumersFull):
        bus.broker.subscribe("ann", consumer="somebody else")
    bus.close()


def test_a_channel_counts_as_a_subscriber(bus: Bus) -> None:
    """T2, B13: what it takes is not without one."""
    with bus.broker.channel("ann", ["fruit"]) as ann:
        bus.publish("fruit.sour", 1)
        delivery = ann.receive("60s")
        assert delivery is not None
        delivery.ack()
        assert bus.broker.queue("remuda.unrouted").size == 0
    bus.close()


def test_for_coroutines(bus: Bus) -> None:
    """T2"""

    async def main() -> list[Any]:
        async with await bus.broker.aio.channel("ann", ["fruit"]) as ann:
            await bus.publish_async("fruit.sour", 1)
            delivery = await ann.receive("60s")
            assert delivery is not None
            await delivery.ack()
            return delivery.bodies

    assert asyncio.run(main()) == [b"1"]
    bus.close()


def test_what_a_subscriber_does_not_answer_stays_its_own(bus: Bus) -> None:
    """T2: it comes again when the subscriber does; nobody else's state changes."""
    handled: list[int] = []
    bus.subscribe("fruit", queue="workers")(lambda body: handled.append(body))
    with bus.testing() as test:
        with bus.broker.channel("ann", ["fruit"]) as ann:
            test.publish("fruit", 1)
            test.run()
            assert ann.receive(0) is not None
        assert handled == [1]
        with bus.broker.channel("ann", ["fruit"]) as ann:
            again = ann.receive("60s")
            assert again is not None
            assert again.attempts == [2]
