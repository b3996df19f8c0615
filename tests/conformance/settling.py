"""Answers, missing answers, lost consumers, and what producers hear of them (Q3, Q4, Q9, M8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from remuda.broker.delivery import Delivery
from remuda.broker.port import Broker
from remuda.model.errors import CommitTimeout, DeliveryFailed, InvalidOption
from remuda.model.message import Message
from remuda.model.operations.results import Receipt
from tests.conformance.kit import (
    MOMENT,
    SOON,
    Backend,
    Conformance,
    bodies_of,
    eventually,
    numbered,
    pulled,
    queue_names,
    received,
    restarted,
    state_of,
    urgent,
    view,
    waiting_bodies,
)


class Timeouts(Conformance):
    """Q3: no answer in time is no answer."""

    def test_q3_a_missing_answer_puts_back_on_time(self, broker: Broker) -> None:
        broker.create_queue("orders", acknowledge_timeout="60ms")
        consumer = broker.subscribe("orders")
        receipt = broker.publish(numbered(1))
        first = received(consumer)
        second = received(consumer)
        assert second.bodies == first.bodies
        assert second.attempts == [2]

        def silences() -> list[int]:
            fetched = [each.fetched for each in view(broker, receipt.id).consumed_by]
            return [later - earlier for earlier, later in pairwise(fetched)]

        while min(silences()) > 60_000 + 150_000 and len(silences()) < 100:
            received(consumer)  # a busy machine may let one pass late, but not all
        assert min(silences()) >= 60_000, "put back before its time"
        assert min(silences()) <= 60_000 + 150_000, "put back late"

    def test_q3_a_late_answer_cannot_settle_the_next_delivery(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", acknowledge_timeout="30ms")
        receipt = broker.publish(numbered(1))
        late = pulled(broker, consumer="slow")
        eventually(lambda: broker.queue("orders").waiting == 1)
        broker.configure_queue("orders", acknowledge_timeout="1m")
        fresh = pulled(broker, consumer="slow")
        assert late.lease != fresh.lease
        for answer in (late.ack, late.nack, late.retry, late.release, late.invalid, late.not_interested, late.dead):
            assert answer() == 0
        assert state_of(broker, receipt.id) == "F"
        assert fresh.ack() == 1
        assert state_of(broker, receipt.id) == "X"

    def test_q3_late_answers_are_counted(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", acknowledge_timeout="20ms")
        broker.publish(numbered(1))
        late = pulled(broker)
        eventually(lambda: broker.queue("orders").waiting == 1)
        assert broker.queue("orders").late_answers == 0
        late.ack()
        late.nack()
        assert broker.queue("orders").late_answers == 2

    def test_q3_a_holder_may_ask_for_more_time(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", acknowledge_timeout="400ms")
        receipt = broker.publish(numbered(1))
        delivery = pulled(broker)
        broker.configure_queue("orders", acknowledge_timeout="1h")
        assert broker.renew(delivery)
        time.sleep(0.45)
        assert state_of(broker, receipt.id) == "F"
        assert delivery.ack() == 1
        assert not broker.renew(delivery)

    def test_q3_an_answer_in_time_counts(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", acknowledge_timeout="10s")
        broker.publish(numbered(1))
        delivery = pulled(broker)
        assert delivery.deadline > 0
        assert delivery.ack() == 1

    def test_q3_only_what_was_not_answered_times_out(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", acknowledge_timeout="400ms")
        broker.publish(numbered(4))
        assert pulled(broker, count=4).ack(rows=[0, 2]) == 2
        eventually(lambda: broker.queue("orders").waiting == 2)
        assert waiting_bodies(broker) == [b"1", b"3"]


def answer_no(broker: Broker) -> Delivery:
    delivery = pulled(broker)
    delivery.nack(reason="cannot")
    return delivery


def stay_silent(broker: Broker) -> Delivery:
    delivery = pulled(broker)
    eventually(lambda: not broker.queue("orders").in_flight)
    return delivery


PATIENCE: dict[Callable[[Broker], Delivery], str] = {answer_no: "1m", stay_silent: "40ms"}
"""How long the queue waits for an answer: of one that comes, as long as a busy machine may take."""


class PutBack(Conformance):
    """Q9: where a message goes that was not dealt with."""

    @pytest.mark.parametrize("fail", [answer_no, stay_silent])
    @pytest.mark.parametrize(
        ("put_back", "order"),
        [("no", [b"1", b"2"]), ("priority", [b"0", b"1", b"2"]), ("regular", [b"1", b"2", b"0"])],
    )
    def test_q9_put_back(
        self, broker: Broker, put_back: str, order: list[bytes], fail: Callable[[Broker], Delivery]
    ) -> None:
        broker.create_queue("orders", type="pull", put_back=put_back, acknowledge_timeout=PATIENCE[fail])
        broker.publish(numbered(3))
        assert fail(broker).bodies == [b"0"]
        assert waiting_bodies(broker) == order

    @pytest.mark.parametrize(
        ("put_back", "order"),
        [("no", [b"1", b"2"]), ("priority", [b"0", b"1", b"2"]), ("regular", [b"1", b"2", b"0"])],
    )
    def test_q9_put_back_of_a_lost_consumer(self, broker: Broker, put_back: str, order: list[bytes]) -> None:
        broker.create_queue("orders", put_back=put_back)
        broker.publish(numbered(3))
        with broker.subscribe("orders") as lost:
            assert received(lost).bodies == [b"0"]
        assert bodies_of(broker.subscribe("orders"), len(order)) == order

    @pytest.mark.parametrize(("fail", "reason"), [(answer_no, "cannot"), (stay_silent, "no answer in time")])
    def test_q9_dropped_messages_keep_the_reason(
        self, broker: Broker, fail: Callable[[Broker], Delivery], reason: str
    ) -> None:
        broker.create_queue("orders", type="pull", put_back="no", acknowledge_timeout=PATIENCE[fail])
        receipt = broker.publish(numbered(1))
        fail(broker)
        assert view(broker, receipt.id).state.value == "E"
        assert view(broker, receipt.id).reason == reason
        assert broker.queue("orders").dead == 1

    def test_q9_a_lost_consumers_message_is_dropped_with_a_reason(self, broker: Broker) -> None:
        broker.create_queue("orders", put_back="no")
        receipt = broker.publish(numbered(1))
        with broker.subscribe("orders") as lost:
            received(lost)
        assert view(broker, receipt.id).reason == "consumer lost"

    @pytest.mark.parametrize("put_back", ["regular", "priority"])
    def test_q9_high_priority_stays_high(self, broker: Broker, put_back: str) -> None:
        broker.create_queue("orders", type="pull", put_back=put_back)
        broker.publish([urgent(b"h0"), urgent(b"h1"), *numbered(1)])
        pulled(broker).nack()
        first = [b"h0", b"h1"] if put_back == "priority" else [b"h1", b"h0"]
        assert waiting_bodies(broker) == [*first, b"0"]

    def test_q9_high_priority_stays_high_through_delay_and_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", put_back_delay="20ms")
        broker.publish([urgent(b"h"), *numbered(1)])
        pulled(broker).nack()
        broker = restarted(backend, broker)
        eventually(lambda: broker.queue("orders").waiting == 2)
        assert waiting_bodies(broker) == [b"h", b"0"]

    def test_q9_priority_goes_behind_high_ones(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", put_back="priority")
        broker.publish(numbered(2))
        pulled(broker).nack()
        broker.publish(urgent(b"h"))
        assert waiting_bodies(broker) == [b"h", b"0", b"1"]

    def test_q9_a_batch_goes_back_in_order(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", put_back="priority")
        broker.publish(numbered(5))
        pulled(broker, count=3).nack()
        assert waiting_bodies(broker) == [b"0", b"1", b"2", b"3", b"4"]

    @pytest.mark.parametrize("fail", [answer_no, stay_silent])
    def test_q9_put_back_delay(self, broker: Broker, fail: Callable[[Broker], Delivery]) -> None:
        broker.create_queue("orders", type="pull", put_back_delay="400ms", acknowledge_timeout=PATIENCE[fail])
        receipt = broker.publish(numbered(1))
        fail(broker)
        put_back = view(broker, receipt.id)
        info = broker.queue("orders")
        assert put_back.state.value == "R"
        assert (info.delayed, info.waiting, info.size) == (1, 0, 1), "a delayed put-back counts in the queue's size"
        assert broker.pull("orders") is None
        pulled(broker, timeout=SOON)
        again = view(broker, receipt.id).consumed_by[1].fetched
        assert again - put_back.modified >= 400_000

    def test_q9_put_back_delay_of_a_lost_consumer(self, broker: Broker) -> None:
        broker.create_queue("orders", put_back_delay="300ms")
        broker.publish(numbered(1))
        with broker.subscribe("orders") as lost:
            received(lost)
        assert broker.queue("orders").delayed == 1
        assert bodies_of(broker.subscribe("orders"), 1) == [b"0"]

    def test_q9_delayed_messages_fill_the_queue(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", put_back_delay="10s", message_limit=1)
        broker.publish(numbered(1))
        pulled(broker).nack()
        assert broker.publish(numbered(1), raise_refusals=False).accepted == 0

    def test_q9_put_backs_leave_the_others_in_order(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(6))
        pulled(broker, count=4).nack(rows=[1, 3])
        assert waiting_bodies(broker) == [b"4", b"5", b"1", b"3"]


class Answers(Conformance):
    """What else a consumer can say, for all or some of a delivery."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull")
        return broker

    def test_some_rows_can_be_answered_apart(self, broker: Broker) -> None:
        ids = broker.publish(numbered(5)).ids
        delivery = pulled(broker, count=5)
        assert delivery.ack(rows=[0, 4]) == 2
        assert delivery.invalid(rows=[1]) == 1
        assert delivery.not_interested(rows=[2]) == 1
        assert delivery.dead(rows=[3]) == 1
        assert [state_of(broker, one) for one in ids] == ["X", "I", "N", "E", "X"]
        assert delivery.ack() == 0

    def test_a_second_answer_is_ignored(self, broker: Broker) -> None:
        receipt = broker.publish(numbered(1))
        delivery = pulled(broker)
        assert delivery.dead(reason="no use") == 1
        assert delivery.ack() == 0
        assert state_of(broker, receipt.id) == "E"

    def test_retry_waits_as_long_as_the_consumer_says(self, broker: Broker) -> None:
        receipt = broker.publish(numbered(1))
        pulled(broker).retry(after="300ms", reason="busy")
        failed = view(broker, receipt.id)
        assert (failed.state.value, failed.reason) == ("R", "busy")
        again = pulled(broker, timeout=SOON)
        assert again.attempts == [2]
        assert view(broker, receipt.id).consumed_by[1].fetched - failed.modified >= 300_000

    def test_a_released_message_was_not_attempted(self, broker: Broker) -> None:
        broker.publish(numbered(1))
        pulled(broker).release()
        assert pulled(broker).attempts == [1]

    def test_release_may_wait(self, broker: Broker) -> None:
        receipt = broker.publish(numbered(1))
        pulled(broker).release(after="300ms")
        released = view(broker, receipt.id)
        pulled(broker, timeout=SOON)
        assert view(broker, receipt.id).consumed_by[1].fetched - released.modified >= 300_000

    def test_attempts_are_counted_across_restarts(self, backend: Backend, broker: Broker) -> None:
        broker.publish(numbered(1))
        for attempt in (1, 2):
            delivery = pulled(broker)
            assert delivery.attempts == [attempt]
            delivery.nack()
        broker = restarted(backend, broker)
        assert pulled(broker).attempts == [3]

    def test_a_message_given_up_can_go_to_another_queue(self, broker: Broker) -> None:
        broker.create_queue("failed", type="pull")
        receipt = broker.publish([urgent(b"h"), *numbered(1)])
        assert pulled(broker, count=2).dead(reason="broken", to="failed") == 2
        assert state_of(broker, receipt.id, "orders") == "E"
        assert state_of(broker, receipt.id, "failed") == "Q"
        assert waiting_bodies(broker, "failed") == [b"h", b"0"]

    def test_an_answered_message_is_never_delivered_again(self, backend: Backend, broker: Broker) -> None:
        broker.publish(numbered(3))
        assert pulled(broker, count=2).ack() == 2
        broker = restarted(backend, broker)
        assert waiting_bodies(broker) == [b"2"]

    @pytest.mark.parametrize("answer", ["dead", "invalid", "not_interested"])
    def test_reasons_are_kept(self, broker: Broker, answer: str) -> None:
        receipt = broker.publish(numbered(1))
        getattr(pulled(broker), answer)(reason="because")
        assert view(broker, receipt.id).reason == "because"

    def test_an_impossible_delay_is_refused(self, broker: Broker) -> None:
        broker.publish(numbered(1))
        delivery = pulled(broker)
        with pytest.raises(InvalidOption, match="negative"):
            delivery.retry(after=-1)
        assert delivery.ack() == 1

    def test_q9_an_answer_says_where_the_message_goes_back_to(self, broker: Broker) -> None:
        broker.create_queue("mails", type="pull", put_back="regular")
        broker.publish(numbered(3, "mails"))
        pulled(broker, "mails").nack(front=True)
        assert pulled(broker, "mails").bodies == [b"0"]
        pulled(broker, "mails").nack(front=False)
        assert waiting_bodies(broker, "mails") == [b"2", b"1"]

    def test_q9_an_answer_says_whether_the_attempt_counts(self, broker: Broker) -> None:
        broker.create_queue("mails", type="pull")
        broker.publish(numbered(1, "mails"))
        first = pulled(broker, "mails")
        assert (first.attempts, first.redelivered) == ([1], [False])
        first.release()
        second = pulled(broker, "mails")
        assert (second.attempts, second.redelivered) == ([1], [True])
        second.nack(counted=False)
        third = pulled(broker, "mails")
        assert (third.attempts, third.redelivered) == ([1], [True])
        third.release(counted=True)
        assert pulled(broker, "mails").attempts == [2]


class Commits(Conformance):
    """Q4: what a waiting producer is told, and when."""

    @pytest.fixture
    def producer(self, broker: Broker) -> Any:
        with ThreadPoolExecutor(1) as pool:

            def publish(message: Message | list[Message]) -> Future[Receipt]:
                before = broker.queue("orders").size
                work = pool.submit(broker.publish, message)
                eventually(lambda: work.done() or broker.queue("orders").size != before)
                return work

            yield publish

    @pytest.mark.parametrize("commit_when", ["none", "received"])
    def test_q4_none_and_received_wait_for_no_consumer(self, broker: Broker, commit_when: str) -> None:
        broker.create_queue("orders", type="pull", commit_when=commit_when)
        assert broker.publish(numbered(2)).accepted == 2
        assert waiting_bodies(broker) == [b"0", b"1"]

    def test_q4_received_means_kept(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(2))
        broker = restarted(backend, broker)
        assert waiting_bodies(broker) == [b"0", b"1"]

    def test_q4_sent_waits_for_a_consumer(self, broker: Broker, producer: Any) -> None:
        broker.create_queue("orders", type="pull", commit_when="sent")
        work = producer(numbered(1))
        assert not work.done()
        pulled(broker)
        assert work.result(SOON).accepted == 1

    def test_q4_acknowledged_waits_for_the_answer(self, broker: Broker, producer: Any) -> None:
        broker.create_queue("orders", type="pull", commit_when="acknowledged")
        work = producer(numbered(2))
        delivery = pulled(broker, count=2)
        delivery.ack(rows=[0])
        time.sleep(0.02)
        assert not work.done()
        delivery.ack(rows=[1])
        assert work.result(SOON).accepted == 2

    def test_q4_acknowledged_without_answers_means_sent(self, broker: Broker, producer: Any) -> None:
        broker.create_queue("orders", type="pull", commit_when="acknowledged", acknowledge="none")
        work = producer(numbered(1))
        pulled(broker)
        work.result(SOON)

    @pytest.mark.parametrize("answer", ["dead", "invalid", "not_interested", "nack"])
    def test_q4_an_answer_that_ends_the_message_is_a_failure(self, broker: Broker, producer: Any, answer: str) -> None:
        broker.create_queue("orders", type="pull", commit_when="acknowledged", put_back="no")
        work = producer(numbered(1))
        getattr(pulled(broker), answer)(reason="the wheel came off")
        with pytest.raises(DeliveryFailed, match=r"ended without success: the wheel came off\. It is kept") as caught:
            work.result(SOON)
        assert caught.value.reason == "the wheel came off"

    def test_q4_a_put_back_is_no_failure_yet(self, broker: Broker, producer: Any) -> None:
        broker.create_queue("orders", type="pull", commit_when="acknowledged")
        work = producer(numbered(1))
        pulled(broker).nack()
        time.sleep(0.02)
        assert not work.done()
        pulled(broker).ack()
        work.result(SOON)

    @pytest.mark.parametrize("commit_when", ["sent", "acknowledged"])
    @pytest.mark.parametrize(
        ("end", "reason"),
        [
            (lambda broker: broker.clear("orders"), "cleared"),
            (lambda broker: broker.remove_queue("orders"), "queue removed"),
            (lambda broker: broker.configure_queue("orders", message_timeout="1s"), None),
        ],
    )
    def test_q4_a_message_that_ends_unsent_is_a_failure(
        self, broker: Broker, producer: Any, commit_when: str, end: Callable[[Broker], Any], reason: str | None
    ) -> None:
        if reason is None:
            reason, timeout = "expired", "30ms"
        else:
            timeout = "0s"
        broker.create_queue("orders", type="pull", commit_when=commit_when, message_timeout=timeout)
        work = producer(numbered(1))
        end(broker)
        with pytest.raises(DeliveryFailed) as caught:
            work.result(SOON)
        assert caught.value.reason == reason

    @pytest.mark.parametrize("commit_when", ["sent", "acknowledged"])
    def test_q4_the_wait_can_be_limited(self, broker: Broker, commit_when: str) -> None:
        broker.create_queue("orders", type="pull", commit_when=commit_when)
        with pytest.raises(CommitTimeout, match="the message is kept and will be delivered"):
            broker.publish(numbered(1), timeout="20ms")
        assert waiting_bodies(broker) == [b"0"]

    def test_q4_one_queue_of_two_may_wait(self, broker: Broker, producer: Any) -> None:
        broker.create_queue("orders", type="pull", commit_when="acknowledged")
        broker.create_queue("audit", type="pull")
        work = producer(Message("orders", b"x", topics=("orders", "audit")))
        waiting_bodies(broker, "audit")
        time.sleep(0.02)
        assert not work.done()
        waiting_bodies(broker)
        work.result(SOON)

    def test_q4_an_unchanged_message_waits_for_nobody(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(Message("orders", b"A", object="o", key="k"))
        broker.configure_queue("orders", commit_when="acknowledged")
        assert broker.publish(Message("orders", b"A", object="o", key="k"), timeout=SOON).unchanged == (0,)


class Confirmations(Conformance):
    """M8: how many confirmations complete a message."""

    def test_m8_one_unless_said_otherwise(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push")
        consumers = [broker.subscribe("orders") for _ in range(2)]
        receipt = broker.publish(numbered(1))
        assert [received(consumer).ack() for consumer in consumers] == [1, 0]
        assert view(broker, receipt.id).confirmed_count == 1

    def test_m8_success_at_each_and_completed_at_the_last(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations=2)
        held = [broker.subscribe("orders", consumer=name) for name in "abc"]
        receipt = broker.publish(numbered(1))
        deliveries = [received(consumer) for consumer in held]
        seen = []
        for delivery in deliveries[:2]:
            assert delivery.ack() == 1
            told = view(broker, receipt.id)
            seen.append((told.state.value, told.confirmed_count))
        assert seen == [("S", 1), ("X", 2)]
        assert deliveries[2].ack() == 0, "a confirmation too many is ignored"
        assert broker.queue("orders").size == 0
        assert broker.queue("orders").late_answers == 1

    def test_m8_nobody_confirms_twice(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations=2)
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        receipt = broker.publish(numbered(1))
        ours, theirs = received(first), received(second)
        assert [ours.ack(), ours.ack()] == [1, 0]
        assert state_of(broker, receipt.id) == "S"
        assert theirs.ack() == 1
        assert state_of(broker, receipt.id) == "X"

    def test_m8_one_per_topic(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations="per-topic")
        consumers = [broker.subscribe("orders") for _ in range(3)]
        receipt = broker.publish(Message("orders", b"", topics=("orders.a", "orders.b")))
        deliveries = [received(consumer) for consumer in consumers]
        assert deliveries[0].ack() == 1
        assert state_of(broker, receipt.id) == "S"
        assert deliveries[1].ack() == 1
        document = broker.message(receipt.id)
        assert document.topic_count == 2
        assert (document.queues[0].state.value, document.queues[0].confirmed_count) == ("X", 2)

    def test_m8_several_need_a_push_queue(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="needs type='push'"):
            broker.create_queue("orders", type="pull", confirmations="per-topic")
        assert queue_names(broker) == []

    def test_m8_the_next_message_follows_the_first_confirmation(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations=2)
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        broker.publish(numbered(2))
        received(first).ack()
        assert received(first).bodies == [b"1"]
        assert received(second).bodies == [b"0"]

    def test_m8_when_all_decline_the_message_goes_back(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations=2)
        consumers = [broker.subscribe("orders") for _ in range(2)]
        broker.publish(numbered(1))
        for consumer in consumers:
            received(consumer).nack()
        assert [received(consumer).attempts for consumer in consumers] == [[2], [2]]

    def test_m8_too_few_confirmations_leave_it_a_success(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations=2, acknowledge_timeout="40ms")
        first, _ = broker.subscribe("orders"), broker.subscribe("orders")
        receipt = broker.publish(numbered(1))
        while not received(first).ack():
            pass  # a busy machine was late
        eventually(lambda: broker.queue("orders").size == 0)
        assert state_of(broker, receipt.id) == "S"
        assert first.receive(MOMENT) is None

    def test_m8_confirmations_survive_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="push", confirmations=2)
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        receipt = broker.publish(numbered(1))
        received(first).ack()
        received(second)
        broker = restarted(backend, broker)
        assert view(broker, receipt.id).confirmed_count == 1
        assert broker.subscribe("orders").receive(MOMENT) is None, "a confirmed message is not delivered again"
