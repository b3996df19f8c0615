"""Where messages go that come back, end or are moved (Q5, Q9, Q15, B7, B12, B15)."""

from __future__ import annotations

import pytest

from remuda.core.extensions import MessageFacts
from remuda.model.messages import Messages
from remuda.model.operations.commands import Clear, Move, Publish
from remuda.model.operations.filters import MessageFilter
from remuda.model.queues.options import Status
from remuda.model.settlement import Outcome
from remuda.model.state import State
from remuda.model.values.durations import SECOND
from tests.core.kit import PULL, Bench, offsets


@pytest.mark.parametrize("outcome", [Outcome.RELEASE, Outcome.NACK])
@pytest.mark.parametrize(("front", "order"), [(True, [0, 1, 2]), (False, [1, 2, 0])])
@pytest.mark.parametrize("counted", [True, False])
def test_q9_a_consumer_says_where_and_whether_it_counts(
    outcome: Outcome, front: bool, order: list[int], counted: bool
) -> None:
    bench = Bench(PULL)
    bench.publish(*"abc")
    bench.answer(bench.pull(), outcome, front=front, counted=counted)
    assert bench.line() == order
    assert bench.core.queues["q"].attempts == {0: int(counted)}
    all_three = bench.pull(3)
    assert all_three is not None
    again = dict(zip([first for first, _ in all_three.runs], all_three.redelivered, strict=True))
    assert again[0]
    assert not again[1]


def test_q15_32_priorities_each_first_in_first_out() -> None:
    bench = Bench(PULL)
    for _ in range(2):
        for priority in range(32):
            bench.publish("x", priority=priority)
    wanted = [offset for priority in range(31, -1, -1) for offset in (priority, 32 + priority)]
    assert offsets(bench.pull(64)) == wanted


def test_a_message_put_back_to_the_front_stays_in_its_priority() -> None:
    bench = Bench(PULL)
    bench.publish("low", "low")
    first = bench.pull()
    bench.publish("high", priority=9)
    bench.answer(first, Outcome.RELEASE, front=True)
    assert bench.line() == [2, 0, 1]


@pytest.mark.parametrize("target", [None, "dead"])
def test_the_delivery_limit_ends_a_message_that_comes_back_too_often(target: str | None) -> None:
    bench = Bench({**PULL, "delivery_limit": 2, "dead_letter_queue": target})
    bench.publish("a", priority=7)
    for _ in range(3):
        assert bench.core.info("q").waiting == 1
        bench.answer(bench.pull(), Outcome.NACK, reason="busy")
    assert bench.core.info("q").size == 0
    assert bench.core.info("q").dead == (target is None)
    assert "delivery limit reached" in (bench.events[-1 if target is None else -2].reason or "")
    if target is not None:
        assert [level[:2] for level in bench.core.queues["dead"].ready.levels()] == [(7, False)]


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("how", ["dead", "nack", "expired", "evicted", "lost"])
def test_what_ends_moves_to_the_dead_letters_and_is_parked_only_if_they_refuse_it(how: str, refuses: bool) -> None:
    bench = Bench(
        {"type": "round-robin", "put_back": "no", "dead_letter_queue": "dead", "message_timeout": 9,
         "message_limit": 1, "limit_exceeded": "delete-oldest"}
    )  # fmt: skip
    bench.declare("dead", PULL)
    if refuses:
        bench.set_status(Status.PAUSED, "dead")
    if how == "lost":
        bench.subscribe("c")
    bench.publish("a")
    if how == "dead":
        bench.answer(bench.pull(), Outcome.DEAD)
    elif how == "nack":
        bench.answer(bench.pull(), Outcome.NACK)
    elif how == "expired":
        bench.wait(9)
    elif how == "evicted":
        bench.publish("b")
    else:
        bench.take(bench.sent[0])
        bench.unsubscribe("c")
    assert (bench.core.info("q").dead, bench.core.info("dead").waiting) == ((1, 0) if refuses else (0, 1))
    moved = next(event for event in bench.events if event.state is State.DEAD)
    assert moved.to == (None if refuses else "dead")
    again = bench.restarted()
    assert (again.info("q").dead, again.info("dead").waiting) == ((1, 0) if refuses else (0, 1))


def test_two_full_queues_do_not_send_each_other_their_messages_without_end() -> None:
    full = {**PULL, "message_limit": 1, "limit_exceeded": "delete-oldest"}
    bench = Bench({**full, "dead_letter_queue": "other"})
    bench.declare("other", {**full, "dead_letter_queue": "q"})
    for _ in range(4):
        bench.publish("a")
    assert bench.sizes() == {"q": 1, "other": 1}
    assert bench.core.info("q").dead + bench.core.info("other").dead == 2


@pytest.mark.parametrize("newest", [False, True])
def test_q5_what_a_full_queue_evicts_after_its_deadline_is_not_delivered(newest: bool) -> None:
    """A pull lets a message expire; the full queue it goes to sends back one that nobody has seen expire yet."""
    brief = {**PULL, "message_timeout": 5}
    bench = Bench({**brief, "expired_queue": "late"})
    bench.declare("late", {**brief, "message_limit": 1, "limit_exceeded": "delete-oldest", "dead_letter_queue": "q"})
    bench.publish_to({"queue": "late"}, "overdue")
    bench.now += 1
    bench.publish("expires")
    bench.now += 10 * SECOND  # and no tick
    assert offsets(bench.pull(5, newest=newest)) == [1]
    assert bench.line("late") == [0], "it expired in `q` and lives anew here"
    bench.wait(0)
    assert [event.reason for event in bench.events if event.first == 0 and event.to] == ["evicted", "expired"]


def test_b15_a_move_takes_what_finds_room_and_leaves_the_rest_as_it_is() -> None:
    bench = Bench(PULL)
    bench.declare("small", {**PULL, "message_limit": 3})
    bench.publish(*"abcde")
    bench.answer(bench.pull(2), Outcome.INVALID, reason="bad")
    assert bench.move("small", "ann", states=frozenset({State.INVALID})) == 2
    assert bench.move("small", states=frozenset({State.QUEUED})) == 1
    info = bench.core.info("q")
    assert (info.waiting, info.dead, info.invalid, bench.core.info("small").waiting) == (2, 0, 0, 3)
    assert bench.move("q") == 0
    assert bench.move("elsewhere", states=frozenset({State.QUEUED}), offsets=((4, 1),)) == 1
    assert (bench.line(), bench.line("elsewhere")) == ([3], [4])


def test_q12_a_parked_message_that_is_moved_leaves_its_id_to_the_live_one() -> None:
    bench = Bench({**PULL, "unique_ids": True})
    bench.publish("a", ids=["x"])
    bench.clear()
    bench.publish("b", ids=["x"])
    assert bench.move("other") == 1
    assert list(bench.publish("c", ids=["x"]).refusals) == [0]


def test_b15_clear_by_offset() -> None:
    bench = Bench(PULL)
    bench.publish(*"abcde")
    assert bench.clear(offsets=((1, 2), (4, 9))) == 3
    assert bench.line() == [0, 3]


def test_b15_retries_are_brought_forward_even_where_the_queue_is_full() -> None:
    bench = Bench({**PULL, "message_limit": 2, "put_back_delay": 60})
    bench.publish("dead")
    bench.answer(bench.pull(), Outcome.DEAD)
    bench.publish("retry", "waits")
    bench.answer(bench.pull(), Outcome.NACK)
    assert bench.reprocess(states=frozenset({State.DEAD, State.RETRY})) == 1
    assert (bench.core.info("q").waiting, bench.core.info("q").dead) == (2, 1)


@pytest.mark.parametrize("rule", ["no-messages", "empty"])
def test_q10_parked_messages_keep_a_queue(rule: str) -> None:
    bench = Bench({**PULL, "auto_destroy": rule})
    bench.publish("a")
    bench.answer(bench.pull(), Outcome.INVALID)
    assert "q" in bench.core.queues
    assert bench.forget() == 1
    assert "q" not in bench.core.queues


def test_q10_a_closing_broker_and_a_restart_leave_queues_without_consumers() -> None:
    bench = Bench({"auto_destroy": "no-consumers"})
    bench.subscribe("c")
    bench.publish("a")
    assert "q" in bench.restarted().queues
    bench.core.registry.closing = True
    bench.unsubscribe("c")
    assert "q" in bench.core.queues


def test_l3_a_message_whose_queues_creation_was_lost_is_found_again() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    bench.effects = bench.effects[1:]
    fresh = bench.restarted()
    assert fresh.found == {"q": 2}
    assert fresh.info("q").waiting == 2


def test_q12_an_id_that_came_with_a_move_is_its_messages_after_a_restart_too() -> None:
    """Nothing in the log tells that a message which too few confirmed has left."""

    def facts(offset: int) -> MessageFacts:
        return MessageFacts("x", 1)

    bench = Bench({"type": "push", "confirmations": 3, "unique_ids": True, "acknowledge_timeout": 1}, facts_of=facts)
    bench.subscribe("one", "two", "three")
    bench.publish("a", ids=["x"])
    bench.answer(bench.sent[0], Outcome.ACK)
    bench.wait(2)
    for consumer in ("one", "two", "three"):
        bench.unsubscribe(consumer)
    assert bench.core.queues["q"].size == 0
    bench.declare("other", PULL)
    bench.publish_to({"queue": "other"}, "b", ids=["x"])
    assert bench.do(Move("other", "q", MessageFilter(states=frozenset({State.QUEUED})))) == 1
    again = Publish(Messages(bodies=[b"c"], name="q", ids=["x"]), queue="q")
    assert list(bench.restarted(facts_of=facts).apply(again, bench.now).refusals) == [0]


def test_q6_bytes_that_come_from_another_queue_or_back_count_towards_the_limit() -> None:
    def facts(offset: int) -> MessageFacts:
        return MessageFacts(str(offset), 6)

    bench = Bench({**PULL, "byte_limit": 10}, facts_of=facts)
    bench.declare("other", PULL)
    queue = bench.core.queues["q"]
    for _ in range(2):
        bench.publish("6bytes", name="other")
    everything = MessageFilter(states=frozenset({State.QUEUED}))
    assert bench.do(Move("other", "q", everything)) == 1
    assert queue.bytes == 6
    assert list(bench.publish("6bytes").refusals) == [0]
    assert bench.restarted(facts_of=facts).queues["q"].bytes == 6

    bench.answer(bench.pull(), Outcome.DEAD)
    assert queue.bytes == 0
    assert bench.publish("6bytes").accepted == 1
    assert bench.reprocess() == 0, "there is no room for it yet"
    bench.answer(bench.pull(), Outcome.ACK)
    assert bench.reprocess() == 1
    assert queue.bytes == 6
    assert bench.restarted(facts_of=facts).queues["q"].bytes == 6
    bench.answer(bench.pull(), Outcome.ACK)
    assert queue.bytes == 0


def test_q6_a_dead_letter_queue_keeps_its_limit_of_bytes() -> None:
    bench = Bench({**PULL, "dead_letter_queue": "dead"}, facts_of=lambda offset: MessageFacts(str(offset), 6))
    bench.declare("dead", {**PULL, "byte_limit": 15, "limit_exceeded": "delete-oldest"})
    for _ in range(5):
        bench.publish("6bytes")
        bench.answer(bench.pull(), Outcome.DEAD)
    dead = bench.core.queues["dead"]
    assert (dead.ready.size, dead.bytes) == (2, 12)
    bench.configure("dead", limit_exceeded="reject-new")
    bench.publish("6bytes")
    bench.answer(bench.pull(), Outcome.DEAD)
    assert (dead.ready.size, dead.bytes) == (2, 12)
    assert bench.core.info("q").dead == 1, "what finds no room is parked where it was"


def ten_bytes(offset: int) -> MessageFacts:
    return MessageFacts("", 10)


def test_q6_bytes_of_messages_that_moved_here_count_towards_the_limit() -> None:
    bench = Bench(PULL, facts_of=ten_bytes)
    bench.declare("small", {**PULL, "byte_limit": 35})
    bench.publish(*["x" * 10] * 5)
    assert bench.move("small", states=frozenset({State.QUEUED})) == 3
    assert (bench.core.queues["small"].bytes, bench.core.queues["q"].waiting) == (30, 2)
    full = Publish(Messages(bodies=[b"x" * 10], name="small"), queue="small")
    assert list(bench.do(full).refusals) == [0]
    assert list(bench.restarted(facts_of=ten_bytes).apply(full, bench.now).refusals) == [0]
    bench.do(Clear("small"))
    assert bench.core.queues["small"].bytes == 0


def test_q6_a_queue_of_limited_bytes_evicts_for_messages_that_move_here() -> None:
    bench = Bench({**PULL, "dead_letter_queue": "dead"}, facts_of=ten_bytes)
    bench.declare("dead", {**PULL, "byte_limit": 20, "limit_exceeded": "delete-oldest"})
    bench.publish(*["x" * 10] * 3)
    for _ in range(3):
        bench.answer(bench.pull(), Outcome.DEAD)
    assert (bench.line("dead"), bench.core.queues["dead"].bytes) == ([1, 2], 20)


def test_q6_bytes_of_messages_that_are_reprocessed_count_towards_the_limit() -> None:
    bench = Bench({**PULL, "byte_limit": 20}, facts_of=ten_bytes)
    bench.publish("x" * 10)
    bench.answer(bench.pull(), Outcome.INVALID)
    assert bench.core.queues["q"].bytes == 0
    assert bench.reprocess(states=frozenset({State.INVALID})) == 1
    assert bench.core.queues["q"].bytes == bench.restarted(facts_of=ten_bytes).queues["q"].bytes == 10
