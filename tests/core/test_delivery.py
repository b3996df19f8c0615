"""Who gets what, and when (Q1, Q2, Q5, Q8, Q16)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remuda.core.extensions import Assignment, QueueView
from remuda.model.errors import Conflict, ConsumersFull
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.settlement import Outcome
from tests.core.kit import PULL, Bench


def with_consumers(options: Mapping[str, object], *names: str, batch: int = 1) -> Bench:
    bench = Bench(dict(options))
    for name in names:
        bench.subscribe(name, batch=batch)
    return bench


def test_q1_push_gives_each_message_to_everyone_and_the_first_answer_settles() -> None:
    bench = with_consumers({"type": "push"}, "c1", "c2")
    bench.publish("a")
    assert [dispatch.consumer for dispatch in bench.sent] == ["c1", "c2"]
    assert bench.answer(bench.sent[1], Outcome.ACK) == 1
    assert bench.answer(bench.sent[0], Outcome.NACK) == 0
    assert bench.core.info("q").size == 0


def test_q2_push_waits_for_the_first_answer() -> None:
    bench = with_consumers({"type": "push"}, "c1")
    bench.publish("a", "b")
    assert len(bench.sent) == 1
    bench.answer(bench.sent[0], Outcome.ACK)
    assert len(bench.sent) == 2


def test_q1_round_robin_goes_round_beginning_with_the_longest_connected() -> None:
    bench = with_consumers({"acknowledge": "just-request"}, "c1", "c2", "c3")
    bench.publish(*"abcdef")
    assert [dispatch.consumer for dispatch in bench.sent] == ["c1", "c2", "c3"] * 2


def test_q2_round_robin_leaves_one_unanswered_delivery_per_consumer() -> None:
    bench = with_consumers({}, "c1", "c2")
    bench.publish(*"abcd")
    assert [dispatch.consumer for dispatch in bench.sent] == ["c1", "c2"]
    bench.answer(bench.sent[1], Outcome.ACK)
    assert bench.sent[2].consumer == "c2"


def test_q2_none_is_kicked_when_its_consumer_has_it() -> None:
    bench = with_consumers({"acknowledge": "none"}, "c1")
    bench.publish("a")
    assert bench.states() == "F"
    assert bench.take(bench.sent[0]) == [(0, 1)]
    assert bench.states() == "FK"
    assert bench.core.info("q").size == 0


def test_q16_oldest_or_newest_first() -> None:
    bench = Bench(PULL)
    bench.publish(*"abcd")
    newest = bench.pull(2, newest=True)
    oldest = bench.pull(2)
    assert newest is not None
    assert oldest is not None
    assert (newest.runs, oldest.runs) == ([(3, 1), (2, 1)], [(0, 2)])
    assert (newest.remaining, oldest.remaining) == ((0, 2), (0, 0))


@pytest.mark.parametrize(("clear", "left"), [("none", 3), ("all", 0), ("regular", 0), ("priority", 3)])
def test_q16_clear_after(clear: str, left: int) -> None:
    bench = Bench(PULL)
    bench.publish(*"abcd")
    bench.pull(clear_after=clear)
    assert bench.core.info("q").waiting == left


def test_q16_waiting_pulls_are_served_in_turn() -> None:
    bench = Bench(PULL)
    bench.pull(2, wait=10_000_000, tag=1)
    bench.pull(2, wait=10_000_000, tag=2)
    bench.publish("a", "b", "c")
    assert [(dispatch.tag, dispatch.count) for dispatch in bench.sent] == [(1, 2), (2, 1)]


def test_q16_pulls_that_wait_differently_long_all_end_in_time() -> None:
    bench = Bench(PULL)
    bench.pull(wait=100_000_000, tag=1)
    bench.pull(wait=50_000_000, tag=2)
    bench.wait(60)
    bench.publish("a", "b")
    assert [dispatch.tag for dispatch in bench.sent] == [1]


def test_q8_the_pause_between_messages_is_the_queues() -> None:
    bench = with_consumers({"delay_between_messages": 1, "acknowledge": "just-request"}, "c1", "c2")
    bench.publish("a", "b", "c")
    assert len(bench.sent) == 1
    bench.wait(0.9)
    assert len(bench.sent) == 1
    bench.wait(0.1)
    assert len(bench.sent) == 2


@pytest.mark.parametrize("held_up_by", ["a busy consumer", "a pause"])
def test_q8_time_passes_even_when_nobody_can_take_the_next_message(held_up_by: str) -> None:
    bench = with_consumers({"delay_between_messages": 1}, "c1")
    bench.publish("a", "b")
    if held_up_by == "a pause":
        bench.set_status(Status.PAUSED)
    bench.wait(3)
    assert len(bench.sent) == 1
    bench.set_status(Status.RUNNING)
    bench.answer(bench.sent[0], Outcome.ACK)
    assert len(bench.sent) == 2


def test_q5_never_delivered_after_the_deadline() -> None:
    bench = Bench({**PULL, "message_timeout": 10})
    bench.publish("a")
    bench.now += 10_000_000
    assert bench.pull() is None
    assert bench.core.info("q").dead == 1


@pytest.mark.parametrize("due", [None, 20_000_000])
def test_q5_the_expired_go_to_the_queue_named_for_them(due: int | None) -> None:
    """Whether they waited in line or for their time."""
    bench = Bench({**PULL, "message_timeout": 10, "expired_queue": "late"})
    bench.publish("a", due=None if due is None else bench.now + due)
    bench.wait(10)
    assert (bench.core.info("q").dead, bench.core.info("late").waiting) == (0, 1)


def test_q5_thousands_may_expire_into_another_queue_at_once() -> None:
    bench = Bench({**PULL, "message_timeout": 10, "expired_queue": "late"})
    for _ in range(3000):
        bench.publish("a")
        bench.publish("b", name="between")
    bench.wait(10)
    assert bench.core.info("late").waiting == 3000


def test_b14_due_messages_join_the_line_when_they_are_due() -> None:
    bench = Bench(PULL)
    bench.publish("due", due=bench.now + 5_000_000)
    bench.publish("early")
    bench.now += 6_000_000
    bench.publish("late")
    dispatch = bench.pull(9)
    assert dispatch is not None
    assert [offset for first, count in dispatch.runs for offset in range(first, first + count)] == [1, 0, 2]


def test_q7_the_client_limit() -> None:
    bench = with_consumers({"client_limit": 1}, "c1")
    with pytest.raises(ConsumersFull, match="client_limit"):
        bench.subscribe("c2")
    with pytest.raises(Conflict, match="already"):
        bench.subscribe("c1")


@pytest.mark.parametrize("status", [Status.ONLY_PUBLISH, Status.PAUSED])
def test_q14_a_queue_closed_for_consuming_keeps_its_messages(status: Status) -> None:
    bench = Bench(PULL)
    bench.publish("a")
    bench.set_status(status)
    assert bench.pull() is None
    bench.set_status(Status.RUNNING)
    assert bench.pull() is not None


class LastFirst:
    """A strategy from outside: whoever came last gets everything."""

    def next(self, queue: QueueView) -> Assignment | None:
        return Assignment((queue.members[-1].name,), 2) if queue.members else None


def test_q20_a_strategy_from_outside_decides() -> None:
    def strategy_for(queue: str, options: QueueOptions) -> LastFirst:
        return LastFirst()

    bench = Bench({}, strategy_for=strategy_for)
    for name in ("c1", "c2"):
        bench.subscribe(name)
    bench.publish("a", "b")
    assert [(dispatch.consumer, dispatch.count) for dispatch in bench.sent] == [("c2", 2)]
