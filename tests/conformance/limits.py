"""Deadlines, full queues, large bodies, unique ids (Q5, Q6, Q7, Q12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from remuda.broker.delivery import Delivery
from remuda.broker.port import Broker
from remuda.model.errors import Duplicate, MessageTooLarge, PartlyRefused, QueueFull, Refused
from remuda.model.message import Message
from remuda.model.operations.results import Receipt
from tests.conformance.kit import (
    MOMENT,
    SOON,
    Backend,
    Conformance,
    eventually,
    numbered,
    pulled,
    received,
    restarted,
    state_of,
    urgent,
    view,
    waiting_bodies,
)

HOUR = 3_600_000_000


def taken_at_once(broker: Broker) -> tuple[Receipt, Delivery]:
    """Publish a message to somebody who waits for it, so that it cannot expire before it is taken."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(broker.pull, "orders", timeout=SOON)
        eventually(lambda: broker.queue("orders").pulls == 1)
        receipt = broker.publish(numbered(1))
        delivery = asked.result(SOON)
    assert delivery is not None
    return receipt, delivery


class Expiry(Conformance):
    """Q5: nothing is delivered after its deadline."""

    def test_q5_a_message_waits_no_longer_than_message_timeout(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="50ms")
        receipt = broker.publish(numbered(2))
        eventually(lambda: broker.queue("orders").dead == 2)
        expired = view(broker, receipt.id)
        assert (expired.state.value, expired.reason) == ("E", "expired")
        assert expired.failed is not None
        assert expired.failed - broker.message(receipt.id).created >= 50_000
        assert broker.pull("orders") is None

    def test_q5_none_unless_said_otherwise(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        assert pulled(broker)[0].expires is None

    def test_q5_a_message_may_bring_its_own_deadline(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="1h")
        now = broker.message(broker.publish(numbered(1)).id).created
        broker.publish(Message("orders", b"short", expires=now + 40_000))
        broker.publish(Message("orders", b"long", expires=now + 90 * HOUR))
        eventually(lambda: broker.queue("orders").dead == 1)
        assert waiting_bodies(broker) == [b"0", b"long"]

    def test_q5_expired_messages_can_go_to_a_named_queue(self, broker: Broker) -> None:
        broker.create_queue("late", type="pull")
        broker.create_queue("orders", type="pull", message_timeout="30ms", expired_queue="late")
        receipt = broker.publish([*numbered(2), urgent(b"h")])
        eventually(lambda: broker.queue("late").waiting == 3)
        assert state_of(broker, receipt.id, "orders") == "E"
        assert state_of(broker, receipt.id, "late") == "Q"
        assert waiting_bodies(broker, "late") == [b"h", b"0", b"1"]

    def test_q5_the_named_queue_is_created_when_it_is_missing(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="20ms", expired_queue="late")
        broker.publish(numbered(1))
        eventually(lambda: "late" in {info.name for info in broker.queues()})
        assert broker.queue("late").waiting == 1

    def test_q5_a_consumer_that_comes_late_gets_nothing(self, broker: Broker) -> None:
        broker.create_queue("orders", message_timeout="20ms")
        broker.publish(numbered(3))
        time.sleep(0.03)
        assert broker.subscribe("orders").receive(MOMENT) is None

    def test_q5_a_put_back_does_not_extend_the_deadline(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="60ms", put_back_delay="30ms")
        receipt, delivery = taken_at_once(broker)
        delivery.nack()
        eventually(lambda: broker.queue("orders").dead == 1)
        assert view(broker, receipt.id).reason == "expired"

    def test_q5_a_delay_past_the_deadline_ends_at_the_deadline(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="50ms", put_back_delay="1h")
        taken_at_once(broker)[1].nack()
        eventually(lambda: broker.queue("orders").dead == 1)
        assert broker.queue("orders").size == 0

    def test_q5_the_deadline_passes_while_the_broker_is_down(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="60ms")
        receipt = broker.publish(numbered(1))
        broker.create_queue("slow", type="pull", message_timeout="1h")
        broker.publish(numbered(1, "slow"))
        broker = restarted(backend, broker)
        created = broker.message(receipt.id).created
        while time.time_ns() // 1000 < created + 61_000:
            time.sleep(0.005)
        assert broker.pull("orders") is None
        assert pulled(broker, "slow").bodies == [b"0"]

    def test_q5_a_message_in_flight_is_not_taken_back(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_timeout="30ms")
        receipt, delivery = taken_at_once(broker)
        time.sleep(0.05)
        assert delivery.ack() == 1
        assert state_of(broker, receipt.id) == "X"


class MessageLimit(Conformance):
    """Q6: a queue holds exactly as many as it may."""

    def test_q6_reject_new(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2)
        broker.publish(numbered(2))
        with pytest.raises(QueueFull, match="'orders' holds 2 messages, its message_limit; the message was not stored"):
            broker.publish(numbered(1, start=2))
        assert waiting_bodies(broker) == [b"0", b"1"]

    def test_q6_no_limit_means_none(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=0)
        assert broker.publish(numbered(5000)).accepted == 5000

    def test_q6_a_batch_fills_the_queue_to_the_brim(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=3)
        with pytest.raises(PartlyRefused, match="2 of 5 messages were refused, the others are stored"):
            broker.publish(numbered(5))
        assert waiting_bodies(broker) == [b"0", b"1", b"2"]

    def test_q6_what_is_in_flight_counts(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2)
        broker.publish(numbered(2))
        delivery = pulled(broker)
        with pytest.raises(QueueFull):
            broker.publish(numbered(1, start=2))
        delivery.ack()
        broker.publish(numbered(1, start=3))
        assert waiting_bodies(broker) == [b"1", b"3"]

    def test_q6_exact_under_parallel_producers(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=100)

        def produce(_: int) -> int:
            return sum(broker.publish(one, raise_refusals=False).accepted for one in numbered(25))

        with ThreadPoolExecutor(8) as pool:
            accepted = list(pool.map(produce, range(8)))
        assert sum(accepted) == 100
        assert broker.queue("orders").size == 100

    def test_q6_delete_oldest(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2, limit_exceeded="delete-oldest")
        ids = broker.publish(numbered(2)).ids + broker.publish(numbered(2, start=2)).ids
        assert [state_of(broker, one) for one in ids] == ["E", "E", "Q", "Q"]
        assert view(broker, ids[0]).reason == "evicted"
        assert waiting_bodies(broker) == [b"2", b"3"]

    def test_q6_delete_oldest_spares_high_priority_while_it_can(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2, limit_exceeded="delete-oldest")
        broker.publish([urgent(b"h"), *numbered(3)])
        assert waiting_bodies(broker) == [b"h", b"2"]

    def test_q6_delete_oldest_is_exact_under_parallel_producers(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=50, limit_exceeded="delete-oldest")

        def produce(_: int) -> int:
            return max(broker.queue("orders").size for one in numbered(25) if broker.publish(one))

        with ThreadPoolExecutor(8) as pool:
            sizes = list(pool.map(produce, range(8)))
        assert max(sizes) <= 50
        assert (broker.queue("orders").size, broker.queue("orders").dead) == (50, 150)

    def test_q6_nothing_in_flight_is_evicted(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2, limit_exceeded="delete-oldest")
        broker.publish(numbered(2))
        held = pulled(broker)
        broker.publish(numbered(1, start=2))
        assert held.ack() == 1
        assert waiting_bodies(broker) == [b"2"]

    def test_q6_a_queue_full_of_messages_in_flight_refuses(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2, limit_exceeded="delete-oldest")
        broker.publish(numbered(2))
        held = pulled(broker, count=2)
        with pytest.raises(QueueFull):
            broker.publish(numbered(1, start=2))
        assert held.ack() == 2

    @pytest.mark.parametrize(
        "refused",
        [Message("orders", b"far too long"), Message("orders", b"2", id="taken")],
        ids=["too large", "duplicate"],
    )
    def test_q6_a_refused_message_evicts_nothing(self, broker: Broker, refused: Message) -> None:
        broker.create_queue(
            "orders",
            type="pull",
            message_limit=2,
            limit_exceeded="delete-oldest",
            message_size_limit=5,
            unique_ids=True,
        )
        broker.publish([Message("orders", b"0"), Message("orders", b"1", id="taken")])
        with pytest.raises(Refused):
            broker.publish(refused)
        assert waiting_bodies(broker) == [b"0", b"1"]

    def test_q6_refused_by_one_queue_evicts_in_none(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=1, limit_exceeded="delete-oldest")
        broker.create_queue("small", type="pull", message_size_limit=1)
        broker.publish(numbered(1))
        with pytest.raises(MessageTooLarge):
            broker.publish(Message("orders", b"long", topics=("orders", "small")))
        assert waiting_bodies(broker) == [b"0"]
        assert broker.queue("small").size == 0

    def test_q6_the_limit_holds_after_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=2)
        broker.publish(numbered(2))
        broker = restarted(backend, broker)
        with pytest.raises(QueueFull):
            broker.publish(numbered(1))


class SizeLimit(Conformance):
    def test_q7_message_size_limit(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_size_limit=10)
        broker.publish(Message("orders", b"x" * 10))
        with pytest.raises(MessageTooLarge, match=r"11 bytes is over the message_size_limit of 10.*not stored"):
            broker.publish(Message("orders", b"x" * 11))
        assert waiting_bodies(broker) == [b"x" * 10]

    def test_q7_holds_for_messages_from_other_queues(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_size_limit=3)
        broker.create_queue("before", type="pull")
        broker.publish(
            [Message("before", b"123"), Message("before", b"1234"), Message("before", b"12")], queue="before"
        )
        assert broker.move("before", "orders") == 2
        pulled(broker, "before").dead(reason="given up", to="orders")
        assert waiting_bodies(broker, "orders") == [b"123", b"12"]
        assert (broker.queue("before").dead, broker.queue("before").waiting) == (1, 0)

    def test_q7_no_message_size_limit_means_none(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_size_limit=0)
        broker.publish(Message("orders", b"x" * 5_000_000))
        assert len(pulled(broker).bodies[0]) == 5_000_000


def acknowledged(broker: Broker) -> None:
    pulled(broker).ack()


def given_up(broker: Broker) -> None:
    pulled(broker).dead()


def cleared(broker: Broker) -> None:
    broker.clear("orders")


def expired(broker: Broker) -> None:
    eventually(lambda: broker.queue("orders").dead == 1)


def removed(broker: Broker) -> None:
    broker.remove_queue("orders")
    broker.create_queue("orders", type="pull", unique_ids=True)


def evicted(broker: Broker) -> None:
    broker.configure_queue("orders", message_limit=1, limit_exceeded="delete-oldest")
    broker.publish(Message("orders", b"", id="other"))


class UniqueIds(Conformance):
    """Q12: an id is taken from its message's coming to its end."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull", unique_ids=True)
        return broker

    def refuses(self, broker: Broker) -> None:
        with pytest.raises(Duplicate, match="already holds a message with id 'a' that is queued or in flight"):
            broker.publish(Message("orders", b"again", id="a"))

    def test_q12_off_unless_said_otherwise(self, broker: Broker) -> None:
        broker.create_queue("other", type="pull")
        broker.publish([Message("other", b"0", id="a"), Message("other", b"1", id="a")])
        assert waiting_bodies(broker, "other") == [b"0", b"1"]

    def test_q12_holds_for_messages_from_other_queues(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("before", type="pull", dead_letter_queue="orders")
        for body in (b"first", b"second"):
            broker.publish(Message("before", body, id="a"), queue="before")
        assert broker.move("before", "orders") == 1
        self.refuses(broker)
        pulled(broker, "before").dead(reason="given up", to="orders")
        assert (broker.queue("before").dead, broker.queue("orders").size) == (1, 1)
        self.refuses(restarted(backend, broker))

    def test_q12_while_queued(self, broker: Broker) -> None:
        broker.publish(Message("orders", b"", id="a"))
        self.refuses(broker)
        assert broker.queue("orders").size == 1

    def test_q12_while_in_flight_or_put_back(self, broker: Broker) -> None:
        broker.publish(Message("orders", b"", id="a"))
        delivery = pulled(broker)
        self.refuses(broker)
        delivery.retry(after="1h")
        self.refuses(broker)

    def test_q12_inside_a_batch(self, broker: Broker) -> None:
        rows = [Message("orders", b"%d" % number, id=own) for number, own in enumerate("aba")]
        assert list(broker.publish(rows, raise_refusals=False).refusals) == [2]
        assert waiting_bodies(broker) == [b"0", b"1"]

    @pytest.mark.parametrize("free", [acknowledged, given_up, cleared, removed, evicted])
    def test_q12_freed_by(self, broker: Broker, free: Callable[[Broker], Delivery]) -> None:
        broker.publish(Message("orders", b"", id="a"))
        self.refuses(broker)
        free(broker)
        assert broker.publish(Message("orders", b"", id="a")).accepted == 1

    def test_q12_freed_by_expiry(self, broker: Broker) -> None:
        broker.configure_queue("orders", message_timeout="30ms")
        broker.publish(Message("orders", b"", id="a"))
        expired(broker)
        assert broker.publish(Message("orders", b"", id="a")).accepted == 1

    def test_q12_freed_without_acknowledgements(self, broker: Broker) -> None:
        broker.configure_queue("orders", acknowledge="none")
        broker.publish(Message("orders", b"", id="a"))
        pulled(broker)
        assert broker.publish(Message("orders", b"", id="a")).accepted == 1

    def test_q12_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.publish([Message("orders", b"", id="a"), Message("orders", b"", id="b")])
        pulled(broker)
        broker = restarted(backend, broker)
        self.refuses(broker)
        for body in waiting_bodies(broker):
            assert body == b""
        broker = restarted(backend, broker)
        assert broker.publish(Message("orders", b"", id="a")).accepted == 1

    def test_q12_a_reprocessed_message_has_its_id_again(self, backend: Backend, broker: Broker) -> None:
        broker.publish(Message("orders", b"", id="a"))
        pulled(broker).dead()
        assert broker.reprocess("orders") == 1
        self.refuses(broker)
        broker = restarted(backend, broker)
        self.refuses(broker)

    def test_q12_a_message_whose_id_was_taken_stays_dead(self, broker: Broker) -> None:
        first = broker.publish(Message("orders", b"first", id="a")).first
        pulled(broker).dead()
        broker.publish(Message("orders", b"second", id="a"))
        assert broker.reprocess("orders") == 0
        assert state_of(broker, first) == "E"
        assert waiting_bodies(broker) == [b"second"]

    def test_q12_switched_on_later_counts_for_what_comes(self, broker: Broker) -> None:
        broker.create_queue("other", type="pull")
        broker.configure_queue("other", unique_ids=True)
        broker.publish(Message("other", b"", id="a"))
        with pytest.raises(Duplicate):
            broker.publish(Message("other", b"", id="a"))

    def test_q12_ids_are_per_queue(self, broker: Broker) -> None:
        broker.create_queue("other", type="pull", unique_ids=True)
        broker.publish([Message("orders", b"", id="a"), Message("other", b"", id="a")])
        assert broker.queue("other").size == broker.queue("orders").size == 1

    def test_q12_subscribers_free_ids_too(self, broker: Broker) -> None:
        broker.create_queue("other", unique_ids=True)
        consumer = broker.subscribe("other")
        for _ in range(3):
            broker.publish(Message("other", b"", id="a"))
            received(consumer).ack()
        assert broker.queue("other").size == 0
