"""Outcomes, missing answers, lost consumers (Q3, Q9, M8, B12)."""

from __future__ import annotations

import pytest

from remuda.model.message import Priority
from remuda.model.operations.commands import EndUnreadable, Settle, Unsubscribe
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State
from remuda.model.values.durations import SECOND
from tests.core.kit import PULL, Bench, offsets


def test_m8_an_acknowledged_message_succeeds_and_is_complete() -> None:
    bench = Bench(PULL)
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    assert bench.answer(dispatch, Outcome.ACK) == 1
    assert bench.states() == "FSX"
    assert bench.core.info("q").size == 0


def test_m8_a_second_answer_is_ignored_and_counted() -> None:
    bench = Bench(PULL)
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    bench.answer(dispatch, Outcome.ACK)
    assert bench.answer(dispatch, Outcome.NACK) == 0
    assert bench.states() == "FSX"
    assert bench.core.recorder.late_answers == 1


def test_q3_an_old_holder_cannot_settle_the_new_ones_delivery() -> None:
    bench = Bench({**PULL, "acknowledge_timeout": 15})
    bench.publish("a")
    old = bench.pull()
    bench.wait(15)
    new = bench.pull()
    assert old is not None
    assert new is not None
    assert bench.answer(old, Outcome.ACK) == 0
    assert bench.answer(new, Outcome.ACK) == 1


def test_q3_a_part_put_back_early_is_no_longer_the_old_holders() -> None:
    """Its delivery is still open for the rest, but this message is another's by now."""
    bench = Bench(PULL)
    bench.publish("a", "b")
    old = bench.pull(2)
    assert old is not None
    bench.answer(old, Outcome.NACK, runs=[(0, 1)])
    new = bench.pull()
    assert new is not None
    assert bench.answer(old, Outcome.ACK) == 1
    assert bench.core.info("q").in_flight == 1
    assert bench.answer(new, Outcome.ACK) == 1


def test_q3_another_consumers_name_does_not_open_the_lease() -> None:
    bench = Bench(PULL)
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    assert bench.answer(dispatch, Outcome.ACK, consumer="thief") == 0


@pytest.mark.parametrize(("put_back", "order"), [("regular", [1, 2, 0]), ("priority", [0, 1, 2]), ("no", [1, 2])])
def test_q9_where_a_refused_message_goes(put_back: str, order: list[int]) -> None:
    bench = Bench({**PULL, "put_back": put_back})
    bench.publish("a", "b", "c")
    dispatch = bench.pull()
    assert dispatch is not None
    bench.answer(dispatch, Outcome.NACK, reason="busy")
    assert bench.line() == order
    assert bench.core.info("q").dead == (put_back == "no")


def test_q9_priority_goes_before_regular_and_high_stays_high() -> None:
    bench = Bench({**PULL, "put_back": "regular"})
    bench.publish("h", priority=Priority.HIGH)
    dispatch = bench.pull()
    bench.publish("n")
    assert dispatch is not None
    bench.answer(dispatch, Outcome.NACK)
    assert bench.line() == [0, 1]


def test_q9_delayed_put_backs_count_in_the_size_and_come_in_time() -> None:
    bench = Bench({**PULL, "put_back_delay": 5})
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    bench.answer(dispatch, Outcome.NACK)
    assert (bench.core.info("q").delayed, bench.core.info("q").size) == (1, 1)
    bench.wait(4.9)
    assert bench.pull() is None
    bench.wait(0.1)
    assert bench.states() == "FRQ"
    again = bench.pull()
    assert again is not None
    assert again.attempts == [2]


def test_b12_not_now_does_not_count_as_an_attempt() -> None:
    bench = Bench(PULL)
    bench.publish("a")
    for _ in range(3):
        dispatch = bench.pull()
        assert dispatch is not None
        assert dispatch.attempts == [1]
        bench.answer(dispatch, Outcome.RELEASE)


def test_attempts_begin_anew_when_an_operator_brings_a_message_back() -> None:
    bench = Bench(PULL)
    bench.publish("a")
    for attempt in (1, 2):
        dispatch = bench.pull()
        assert dispatch is not None
        assert dispatch.attempts == [attempt]
        bench.answer(dispatch, Outcome.NACK if attempt == 1 else Outcome.DEAD)
    bench.reprocess()
    fresh = bench.pull()
    assert fresh is not None
    assert fresh.attempts == [1]


@pytest.mark.parametrize(
    ("answer", "state"),
    [(Outcome.INVALID, State.INVALID), (Outcome.NOT_INTERESTED, State.NOT_INTERESTED), (Outcome.DEAD, State.DEAD)],
)
def test_b12_final_answers_park_the_message_with_its_reason(answer: Outcome, state: State) -> None:
    bench = Bench(PULL)
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    bench.answer(dispatch, answer, reason="because")
    (piece,) = bench.core.queues["q"].parked
    assert (piece.state, piece.reason) == (state, "because")


def test_b7_a_message_given_up_moves_to_another_queue() -> None:
    bench = Bench(PULL)
    bench.publish("a")
    dispatch = bench.pull()
    assert dispatch is not None
    bench.answer(dispatch, Outcome.DEAD, to="other")
    assert (bench.core.info("q").dead, bench.core.info("other").waiting) == (0, 1)


def test_b7_one_of_several_confirmers_giving_up_moves_nothing_yet() -> None:
    bench = Bench({"type": "push", "confirmations": 2})
    for name in ("c1", "c2"):
        bench.subscribe(name)
    bench.publish("a")
    one, other = bench.sent
    bench.answer(one, Outcome.DEAD, to="other")
    assert "other" not in bench.core.queues
    bench.answer(other, Outcome.DEAD, to="other")
    assert (bench.core.info("q").dead, bench.core.info("other").waiting) == (0, 1)


def test_m8_a_message_is_complete_at_the_last_confirmation_it_needs() -> None:
    bench = Bench({"type": "push", "confirmations": 2})
    for name in ("c1", "c2", "c3"):
        bench.subscribe(name)
    bench.publish("a")
    one, two, three = bench.sent
    bench.answer(one, Outcome.ACK)
    assert bench.answer(one, Outcome.ACK) == 0
    assert bench.states() == "FS"
    bench.answer(two, Outcome.ACK)
    assert bench.states() == "FSSX"
    assert bench.answer(three, Outcome.ACK) == 0
    assert bench.size_of(State.SUCCESS) == 2


def test_m8_who_declined_cannot_confirm_afterwards() -> None:
    bench = Bench({"type": "push", "confirmations": 2})
    for name in ("c1", "c2"):
        bench.subscribe(name)
    bench.publish("a")
    one, _ = bench.sent
    bench.answer(one, Outcome.NACK)
    assert bench.answer(one, Outcome.ACK) == 0
    assert bench.states() == "F"


def test_q9_a_lost_consumers_messages_go_back() -> None:
    bench = Bench({"type": "round-robin"})
    bench.subscribe("c", batch=2)
    bench.publish("a", "b", "c")
    bench.take(bench.sent[0])
    bench.unsubscribe("c")
    assert bench.states() == "FQ"
    assert bench.line() == [2, 0, 1]


@pytest.mark.parametrize("how", ["leave", "time out", "die"])
@pytest.mark.parametrize("acknowledge", ["none", "just-request", "wait"])
@pytest.mark.parametrize("type_", ["push", "round-robin"])
def test_q2_q9_what_a_consumer_was_not_handed_is_used_up_by_nobody(type_: str, acknowledge: str, how: str) -> None:
    bench = Bench(
        {"type": type_, "acknowledge": acknowledge, "put_back": "no", "delivery_limit": 1, "acknowledge_timeout": 5}
    )
    bench.subscribe("c")
    bench.publish("a")
    for _ in range(3):
        if how == "time out":
            bench.wait(5)
        else:
            bench.do(Unsubscribe("q", "c", begun={} if how == "leave" else {bench.sent[-1].lease or 0: [(0, 1)]}))
            bench.subscribe("c")
    assert len(bench.sent) == 4
    assert [dispatch.attempts for dispatch in bench.sent] == [[1]] * 4
    assert bench.take(bench.sent[-1]) == [(0, 1)]
    assert bench.states() == ("FQFQFQFK" if acknowledge == "none" else "FQFQFQF")


def test_q2_the_time_for_an_answer_begins_when_a_delivery_is_handed_over() -> None:
    bench = Bench({"type": "round-robin", "put_back": "no", "acknowledge_timeout": 5})
    bench.subscribe("c")
    bench.publish("a")
    bench.wait(4)
    bench.take(bench.sent[0])
    bench.wait(4)
    assert bench.answer(bench.sent[0], Outcome.ACK) == 1


def test_l3_a_message_that_cannot_be_read_frees_its_consumer_at_once() -> None:
    bench = Bench({"type": "round-robin"})
    bench.subscribe("c")
    bench.publish("unreadable", "fine")
    bench.do(EndUnreadable("q", ((0, 1),)))
    assert [dispatch.runs for dispatch in bench.sent] == [[(0, 1)], [(1, 1)]]


def test_settling_in_a_queue_that_is_gone_is_a_late_answer() -> None:
    bench = Bench(PULL)
    assert bench.do(Settle("gone", 5, Settlement(Outcome.ACK))) == 0
    assert bench.core.recorder.late_answers == 1


def test_q2_whoever_pulls_is_served_by_an_answer_that_comes_when_others_are_due() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    held, late = bench.pull(), bench.pull()
    bench.answer(late, Outcome.RELEASE, delay=SECOND)
    assert bench.pull(wait=60 * SECOND) is None
    bench.now += 2 * SECOND
    bench.answer(held, Outcome.ACK)
    assert [offsets(dispatch) for dispatch in bench.sent] == [[0], [1], [1]]
