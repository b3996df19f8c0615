"""B15: reprocess, clear and forget, each with who did it."""

from __future__ import annotations

import pytest

from remuda.core.effects import Answer
from remuda.core.operators import Selection
from remuda.model.errors import IllegalMove, InvalidOption
from remuda.model.message import Priority
from remuda.model.records import FORGOTTEN, QueueChange
from remuda.model.state import State
from tests.core.kit import Bench

PULL = {"type": "pull"}


def parked() -> Bench:
    """Three messages: dead of timeout, invalid, not interesting; each a minute later."""
    bench = Bench(PULL)
    bench.publish("a", "b", "c")
    for answer, reason in ((Answer.DEAD, "timeout"), (Answer.INVALID, "bad json"), (Answer.NOT_INTERESTED, None)):
        sending = bench.pull()
        assert sending is not None
        bench.answer(sending, answer, reason=reason)
        bench.wait(60)
    return bench


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection(), 3),
        (Selection(states=frozenset({State.DEAD})), 1),
        (Selection(reason="json"), 1),
        (Selection(reason="nothing like it"), 0),
        (Selection(offsets=((1, 2),)), 2),
        (Selection(offsets=((1, 2),), states=frozenset({State.DEAD})), 0),
    ],
)
def test_b15_a_selection_by_state_reason_and_offset(selection: Selection, count: int) -> None:
    bench = parked()
    assert bench.core.reprocess("q", selection, bench.now, "ann") == count
    assert bench.core.info("q").waiting == count
    bench.drain()
    assert {event.who for event in bench.events[6:]} <= {"ann"}


def test_b15_a_selection_by_time() -> None:
    bench = parked()
    start = bench.now - 180_000_000
    assert bench.core.forget("q", Selection(since=start + 60_000_000, until=start + 120_000_000), bench.now) == 1
    assert bench.core.info("q").invalid == 0


def test_m6_what_succeeded_cannot_be_reprocessed() -> None:
    with pytest.raises(IllegalMove, match="COMPLETED"):
        Bench(PULL).core.reprocess("q", Selection(states=frozenset({State.COMPLETED})), 0)


def test_b15_forgetting_is_on_record_and_final() -> None:
    bench = parked()
    assert bench.core.forget("q", Selection(), bench.now, "ann") == 3
    changes = [record for record in bench.drain().records if isinstance(record, QueueChange)]
    assert {(change.action, change.who) for change in changes} == {(FORGOTTEN, "ann")}
    assert bench.core.reprocess("q", Selection(), bench.now) == 0


@pytest.mark.parametrize(("lanes", "left"), [("all", (0, 0, 0)), ("priority", (0, 2, 1)), ("regular", (1, 0, 1))])
def test_b15_clear_by_priority(lanes: str, left: tuple[int, int, int]) -> None:
    bench = Bench(PULL)
    bench.publish("h", priority=Priority.HIGH)
    bench.publish("n", "n")
    bench.publish("d", due=bench.now + 1_000_000)
    bench.core.clear("q", bench.now, lanes=lanes, who="ann")
    info = bench.core.info("q")
    assert (info.high, info.normal, info.delayed) == left
    bench.drain()
    assert {(event.reason, event.who) for event in bench.events} == {("cleared", "ann")}


def test_b15_clear_leaves_alone_what_a_consumer_holds() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    sending = bench.pull()
    assert sending is not None
    assert bench.core.clear("q", bench.now) == 1
    assert bench.answer(sending, Answer.ACKNOWLEDGE) == 1


def test_clear_knows_three_words() -> None:
    with pytest.raises(InvalidOption, match="all, priority or regular"):
        Bench(PULL).core.clear("q", 0, lanes="some")


def test_b15_clear_takes_delayed_messages_that_are_just_due() -> None:
    bench = Bench(PULL)
    bench.publish("now")
    bench.publish("due", due=bench.now + 10)
    bench.now += 10
    assert bench.core.clear("q", bench.now) == 2
