"""Messages come in, or are refused without a trace (Q6, Q7, Q11, Q12, Q14)."""

from __future__ import annotations

import pytest

from remuda.model.errors import Duplicate, MessageTooLarge, NotFound, QueueFull, QueueNotAccepting
from remuda.model.message import Priority
from remuda.model.queues.options import Status
from remuda.model.settlement import Outcome
from tests.core.kit import PULL, Bench


def test_q6_reject_new_takes_what_fits_of_a_batch() -> None:
    bench = Bench({**PULL, "message_limit": 3})
    receipt = bench.publish(*"abcde")
    assert {row: type(error) for row, error in receipt.refusals.items()} == {3: QueueFull, 4: QueueFull}
    assert bench.core.info("q").size == receipt.accepted == 3


def test_q6_messages_in_flight_and_delayed_fill_the_queue_too() -> None:
    bench = Bench({**PULL, "message_limit": 2})
    bench.publish("a")
    bench.pull()
    bench.publish("b", due=bench.now + 10)
    assert isinstance(bench.publish("c").refusals[0], QueueFull)


def test_q6_delete_oldest_keeps_the_newest() -> None:
    bench = Bench({**PULL, "message_limit": 3, "limit_exceeded": "delete-oldest"})
    bench.publish(*"ab")
    bench.publish(*"cde")
    assert bench.line() == [2, 3, 4]
    assert bench.core.info("q").dead == 2


def test_q6_a_refused_message_evicts_nothing() -> None:
    bench = Bench({**PULL, "message_limit": 1, "limit_exceeded": "delete-oldest", "message_size_limit": 3})
    bench.publish("a")
    assert isinstance(bench.publish("too large").refusals[0], MessageTooLarge)
    assert bench.line() == [0]


def test_q6_what_is_in_flight_cannot_be_evicted() -> None:
    bench = Bench({**PULL, "message_limit": 1, "limit_exceeded": "delete-oldest"})
    bench.publish("a")
    bench.pull()
    assert isinstance(bench.publish("b").refusals[0], QueueFull)


def test_q6_a_lower_limit_set_later_evicts_at_once() -> None:
    bench = Bench({**PULL, "limit_exceeded": "delete-oldest"})
    bench.publish(*"abcd")
    bench.configure(message_limit=2)
    assert bench.line() == [2, 3]


@pytest.mark.parametrize("flow", [{}, {"fair": True}])
def test_q6_what_has_come_due_is_evicted_before_what_is_more_urgent(flow: dict[str, object]) -> None:
    bench = Bench({**PULL, **flow, "message_limit": 2, "limit_exceeded": "delete-oldest"})
    bench.publish("due", due=bench.now + 10)
    bench.publish("b", priority=Priority.HIGH)
    bench.now += 10
    bench.publish("c", priority=Priority.HIGH)
    assert bench.line() == [1, 2]


def test_q6_of_what_has_come_due_the_first_to_be_due_is_the_oldest() -> None:
    bench = Bench({**PULL, "limit_exceeded": "delete-oldest"})
    bench.publish("a", due=bench.now + 20)
    bench.publish("b", due=bench.now + 10)
    bench.now += 20
    bench.configure(message_limit=1)
    assert [event.first for event in bench.events] == [1]


def test_q6_a_put_back_message_that_has_come_due_is_older_than_those_behind_it() -> None:
    bench = Bench({**PULL, "limit_exceeded": "delete-oldest"})
    bench.publish(*"ab")
    bench.answer(bench.pull(), Outcome.RELEASE, front=True, delay=10)
    bench.answer(bench.pull(), Outcome.RELEASE, front=True)
    bench.now += 10
    bench.configure(message_limit=1)
    assert bench.line() == [1]


def test_q6_what_is_not_due_is_evicted_last() -> None:
    bench = Bench({**PULL, "message_limit": 2, "limit_exceeded": "delete-oldest"})
    bench.publish("later", due=bench.now + 10)
    bench.publish("b")
    bench.publish("c")
    assert bench.line() == [2]
    assert bench.core.info("q").delayed == 1


@pytest.mark.parametrize("slices", [1, 2])
def test_q6_many_that_have_come_due_leave_in_their_order_a_slice_at_a_time(slices: int) -> None:
    bench = Bench({**PULL, "limit_exceeded": "delete-oldest"})
    bench.core.queues["q"].slice_size = slices
    for second in (3, 1, 5, 2, 4):
        bench.publish("a", due=bench.now + second)
    bench.now += 5
    bench.configure(message_limit=1)
    assert [event.first for event in bench.events] == [1, 3, 0, 4]


def test_q7_zero_means_no_limit() -> None:
    bench = Bench({**PULL, "message_limit": 0, "message_size_limit": 0})
    assert not bench.publish("x" * 100_000, *["y"] * 2000).refusals


def test_q7_the_size_limit_is_inclusive() -> None:
    bench = Bench({**PULL, "message_size_limit": 3})
    receipt = bench.publish("abc", "abcd")
    assert list(receipt.refusals) == [1]


def test_q12_an_id_is_taken_while_queued_or_in_flight() -> None:
    bench = Bench({**PULL, "unique_ids": True})
    assert list(bench.publish("a", "b", ids=["x", "x"]).refusals) == [1]
    dispatch = bench.pull()
    assert dispatch is not None
    assert isinstance(bench.publish("c", ids=["x"]).refusals[0], Duplicate)
    bench.answer(dispatch, Outcome.ACK)
    assert not bench.publish("d", ids=["x"]).refusals


@pytest.mark.parametrize("how", ["clear", "expire", "dead"])
def test_q12_an_id_is_freed_however_its_message_ends(how: str) -> None:
    bench = Bench({**PULL, "unique_ids": True, "message_timeout": 10})
    bench.publish("a", ids=["x"])
    if how == "clear":
        bench.clear()
    elif how == "expire":
        bench.wait(10)
    else:
        dispatch = bench.pull()
        assert dispatch is not None
        bench.answer(dispatch, Outcome.DEAD)
    assert not bench.publish("b", ids=["x"]).refusals


def test_q12_a_message_brought_back_takes_its_id_again() -> None:
    bench = Bench({**PULL, "unique_ids": True})
    bench.publish("a", ids=["x"])
    bench.clear()
    assert bench.reprocess() == 1
    assert isinstance(bench.publish("b", ids=["x"]).refusals[0], Duplicate)


def test_q12_a_message_whose_id_another_has_by_now_stays_parked() -> None:
    bench = Bench({**PULL, "unique_ids": True})
    bench.publish("a", ids=["x"])
    bench.clear()
    bench.publish("b", ids=["x"])
    assert bench.reprocess() == 0
    assert (bench.core.info("q").waiting, bench.core.info("q").dead) == (1, 1)


def test_a_message_for_two_queues_is_taken_by_both_or_by_none() -> None:
    bench = Bench({**PULL, "message_limit": 1})
    bench.publish("a")
    receipt = bench.publish("b", topics=("q", "other"))
    assert list(receipt.refusals) == [0]
    assert bench.core.info("other").size == 0


def test_q11_without_auto_creation_nothing_appears() -> None:
    bench = Bench(auto_queue_creation=False)
    with pytest.raises(NotFound, match="create_queue"):
        bench.publish("a", name="unknown")
    assert not bench.core.queues
    assert not bench.drain().records


@pytest.mark.parametrize("status", [Status.ONLY_CONSUME, Status.PAUSED])
def test_q14_a_queue_that_is_closed_for_publishing_says_so(status: Status) -> None:
    bench = Bench(PULL)
    bench.set_status(status)
    error = bench.publish("a").refusals[0]
    assert isinstance(error, QueueNotAccepting)
    assert status.value in str(error)


def test_an_empty_batch_is_no_message() -> None:
    bench = Bench(PULL)
    assert len(bench.publish()) == 0


def test_q15_high_priority_first_then_in_order() -> None:
    bench = Bench(PULL)
    bench.publish("n0")
    bench.publish("h1", priority=Priority.HIGH)
    bench.publish("n2", "h3", priority=[Priority.NORMAL, Priority.HIGH])
    dispatch = bench.pull(9)
    assert dispatch is not None
    assert [offset for first, count in dispatch.runs for offset in range(first, first + count)] == [1, 3, 0, 2]
