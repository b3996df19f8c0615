"""Time to the microsecond, with a clock that the test moves (Q3, Q5, Q8, Q9)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.message import Message
from tests.broker.kit import HOUR, MILLISECOND, SECOND, ManualClock, open_at, pass_time
from tests.conformance.kit import numbered, pulled, received, state_of, view


@pytest.fixture
def broker(clock: ManualClock) -> Iterator[EmbeddedBroker]:
    with open_at("memory://", clock) as broker:
        yield broker


def test_q3_an_answer_is_in_time_until_the_last_microsecond(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull")
    broker.publish(numbered(2))
    first, second = pulled(broker), pulled(broker)
    pass_time(broker, clock, 15 * SECOND - 1)
    assert first.ack() == 1
    pass_time(broker, clock, 1)
    assert second.ack() == 0
    assert broker.queue("orders").waiting == 1


def test_q3_a_renewed_delivery_has_its_whole_time_again(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull")
    broker.publish(numbered(1))
    delivery = pulled(broker)
    for _ in range(3):
        pass_time(broker, clock, 10 * SECOND)
        assert broker.renew(delivery)
    pass_time(broker, clock, 15 * SECOND)
    assert not broker.renew(delivery)
    assert broker.queue("orders").waiting == 1


def test_q2_what_was_sent_ahead_has_its_whole_time_from_when_it_is_received(
    broker: EmbeddedBroker, clock: ManualClock
) -> None:
    """Q2: and until then nothing is used up."""
    broker.create_queue("orders", acknowledge="just-request", put_back="no")
    with broker.subscribe("orders", credit=5) as orders:
        broker.publish(numbered(1))
        pass_time(broker, clock, 14 * SECOND)
        delivery = received(orders)
        assert delivery.deadline == clock.now + 15 * SECOND
        pass_time(broker, clock, 15 * SECOND - 1)
        assert delivery.attempts == [1]
        assert delivery.ack() == 1


def test_q5_a_message_is_there_until_its_deadline_and_not_after(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull", message_timeout="1m")
    broker.publish(numbered(2))
    pass_time(broker, clock, 60 * SECOND - 1)
    assert pulled(broker).bodies == [b"0"]
    clock.now += 1
    assert broker.pull("orders") is None, "even before the clockwork has noticed"


def test_q5_the_deadline_survives_restarts_unchanged(tmp_path: Path, clock: ManualClock) -> None:
    with open_at(tmp_path / "broker", clock) as broker:
        broker.create_queue("orders", type="pull", message_timeout="1h")
        receipt = broker.publish(numbered(1))
        created = broker.message(receipt.id).created
    for _ in range(3):
        clock.now += HOUR // 4
        with open_at(tmp_path / "broker", clock) as broker:
            pulled(broker).nack()
    clock.now = created + HOUR - 1
    with open_at(tmp_path / "broker", clock) as broker:
        assert state_of(broker, receipt.id) == "Q"
        pass_time(broker, clock, 1)
        expired = view(broker, receipt.id)
        assert (expired.state.value, expired.reason, expired.failed) == ("E", "expired", created + HOUR)


def test_q5_a_changed_timeout_counts_for_what_comes(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull", message_timeout="1m")
    broker.publish(numbered(1))
    broker.configure_queue("orders", message_timeout="1h")
    broker.publish(numbered(1, start=1))
    pass_time(broker, clock, 60 * SECOND)
    assert pulled(broker, count=5).bodies == [b"1"]


def test_q8_messages_are_spaced_exactly(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", acknowledge="none", delay_between_messages="100ms")
    subscription = broker.subscribe("orders")
    ids = broker.publish(numbered(3)).ids
    received(subscription)
    for _ in range(2):
        pass_time(broker, clock, 100 * MILLISECOND - 1)
        assert subscription.receive(0) is None
        pass_time(broker, clock, 1)
        received(subscription)
    times = [view(broker, one).consumed or 0 for one in ids]
    assert [later - earlier for earlier, later in pairwise(times)] == [100 * MILLISECOND] * 2


def test_q9_a_delayed_put_back_comes_at_its_time(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull", put_back_delay="10s")
    broker.publish(numbered(1))
    pulled(broker).nack()
    pass_time(broker, clock, 10 * SECOND - 1)
    assert broker.pull("orders") is None
    pass_time(broker, clock, 1)
    assert pulled(broker).attempts == [2]


def test_a_message_due_later_waits_for_its_time(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull")
    broker.publish([Message("orders", b"later", due=clock.now + SECOND), Message("orders", b"now")])
    assert pulled(broker, count=2).bodies == [b"now"]
    pass_time(broker, clock, SECOND - 1)
    assert broker.pull("orders") is None
    pass_time(broker, clock, 1)
    assert pulled(broker).bodies == [b"later"]


def test_a_clock_that_goes_back_brings_nothing_back(broker: EmbeddedBroker, clock: ManualClock) -> None:
    broker.create_queue("orders", type="pull", message_timeout="1m")
    broker.publish(numbered(1))
    pass_time(broker, clock, 60 * SECOND)
    clock.now -= HOUR
    broker.publish(numbered(1, start=1))
    assert pulled(broker, count=5).bodies == [b"1"]


def test_q16_a_pull_ends_when_its_time_is_up_by_the_brokers_clock(broker: EmbeddedBroker, clock: ManualClock) -> None:
    """The clockwork may notice before whoever waits does, who then waits for no answer that nobody sends."""
    broker.create_queue("orders", type="pull")
    pool = ThreadPoolExecutor(1)
    try:
        waiting = pool.submit(broker.pull, "orders", timeout="1h")
        while not broker.queue("orders").pulls:
            time.sleep(0.001)
        pass_time(broker, clock, HOUR)
        assert waiting.result(60) is None
        assert broker.queue("orders").pulls == 0
    finally:
        pool.shutdown(wait=False)


def test_q16_idle_pulls_in_real_time_all_come_back() -> None:
    pool = ThreadPoolExecutor(4)
    with open_broker("memory://") as broker:
        broker.create_queue("orders", type="pull")
        try:
            pulls = [pool.submit(broker.pull, "orders", timeout="20ms") for _ in range(40)]
            assert [pull.result(60) for pull in pulls] == [None] * 40
        finally:
            pool.shutdown(wait=False)
