"""B15: reprocess, clear and forget, each with who did it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from remuda.model.errors import IllegalMove
from remuda.model.message import Priority
from remuda.model.operations.commands import EndUnreadable, Forget, Reprocess
from remuda.model.operations.filters import MessageFilter
from remuda.model.records import FORGOTTEN, QueueChange
from remuda.model.settlement import Outcome
from remuda.model.state import State
from tests.core.kit import PULL, Bench


def parked() -> Bench:
    """Three messages: dead of timeout, invalid, not interesting; each a minute later."""
    bench = Bench(PULL)
    bench.publish("a", "b", "c")
    for answer, reason in ((Outcome.DEAD, "timeout"), (Outcome.INVALID, "bad json"), (Outcome.NOT_INTERESTED, None)):
        dispatch = bench.pull()
        assert dispatch is not None
        bench.answer(dispatch, answer, reason=reason)
        bench.wait(60)
    return bench


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (MessageFilter(), 3),
        (MessageFilter(states=frozenset({State.DEAD})), 1),
        (MessageFilter(reason="json"), 1),
        (MessageFilter(reason="nothing like it"), 0),
        (MessageFilter(offsets=((1, 2),)), 2),
        (MessageFilter(offsets=((1, 2),), states=frozenset({State.DEAD})), 0),
    ],
)
def test_b15_a_selection_by_state_reason_and_offset(selection: MessageFilter, count: int) -> None:
    bench = parked()
    assert bench.do(Reprocess("q", selection, "ann")) == count
    assert bench.core.info("q").waiting == count
    bench.drain()
    assert {event.who for event in bench.events[6:]} <= {"ann"}


def test_b15_a_selection_by_time() -> None:
    bench = parked()
    start = bench.now - 180_000_000
    assert bench.forget(since=start + 60_000_000, until=start + 120_000_000) == 1
    assert bench.core.info("q").invalid == 0


def test_m6_what_succeeded_cannot_be_reprocessed() -> None:
    with pytest.raises(IllegalMove, match="COMPLETED"):
        Bench(PULL).reprocess(states=frozenset({State.COMPLETED}))


def test_b15_forgetting_is_on_record_and_final() -> None:
    bench = parked()
    assert bench.forget("ann") == 3
    changes = [record for record in bench.records if isinstance(record, QueueChange)]
    assert {(change.action, change.who) for change in changes if change.action == FORGOTTEN} == {(FORGOTTEN, "ann")}
    assert bench.reprocess() == 0


@pytest.mark.parametrize(("lanes", "left"), [("all", (0, 0, 0)), ("priority", (0, 2, 1)), ("regular", (1, 0, 1))])
def test_b15_clear_by_priority(lanes: str, left: tuple[int, int, int]) -> None:
    bench = Bench(PULL)
    bench.publish("h", priority=Priority.HIGH)
    bench.publish("n", "n")
    bench.publish("d", due=bench.now + 1_000_000)
    bench.clear(lanes=lanes, who="ann")
    info = bench.core.info("q")
    assert (info.high, info.normal, info.delayed) == left
    bench.drain()
    assert {(event.reason, event.who) for event in bench.events} == {("cleared", "ann")}


def test_b15_clear_leaves_alone_what_a_consumer_holds() -> None:
    bench = Bench(PULL)
    bench.publish("a", "b")
    dispatch = bench.pull()
    assert dispatch is not None
    assert bench.clear() == 1
    assert bench.answer(dispatch, Outcome.ACK) == 1


def test_b15_clear_takes_delayed_messages_that_are_just_due() -> None:
    bench = Bench(PULL)
    bench.publish("now")
    bench.publish("due", due=bench.now + 10)
    bench.now += 10
    assert bench.clear() == 2


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python are carried out."""
    found = [0]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        found[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found[0]


def of_two_queues(count: int) -> Bench:
    """A bench with as many messages in `q`, none of which is another's neighbour."""
    bench = Bench(PULL)
    bench.declare("other", PULL)
    for _ in range(count):
        bench.publish("a")
        bench.publish("b", name="other")
    return bench


@pytest.mark.alone
def test_clearing_many_single_messages_takes_steps_for_each_of_them_alone() -> None:
    def clear(count: int) -> int:
        bench, chosen = of_two_queues(count), tuple((2 * number, 1) for number in range(count))
        taken = steps(lambda: bench.clear(offsets=chosen))
        assert bench.core.info("q").dead == count
        return taken

    assert clear(200) < 2.5 * clear(100)


@pytest.mark.alone
def test_a_message_that_cannot_be_read_takes_no_steps_for_other_deliveries() -> None:
    def end_one(count: int) -> int:
        bench = of_two_queues(count)
        for _ in range(count):
            bench.pull()
        taken = steps(lambda: bench.do(EndUnreadable("q", ((0, 1),))))
        assert bench.core.info("q").in_flight == count - 1
        return taken

    assert end_one(200) < 1.5 * end_one(100)


@pytest.mark.parametrize("seed", range(5))
def test_b15_the_newest_are_the_same_whether_looked_up_or_sorted(seed: int) -> None:
    """Of many parked messages, few are looked up by when they ended; ranges merge, split, leave and come again."""
    chance = random.Random(seed)
    bench = Bench(PULL)
    parked = bench.core.queues["q"].parked
    for _ in range(60):
        bench.publish(*map(str, range(chance.randrange(1, 40))))
        while (dispatch := bench.pull(chance.randrange(1, 9))) is not None:
            bench.answer(dispatch, chance.choice([Outcome.DEAD, Outcome.INVALID, Outcome.ACK]))
        bench.wait(chance.choice([0, 1, 100]))
        if chance.random() < 0.5 and parked.size:
            first = chance.choice([offset for piece in parked for offset in range(piece.first, piece.end)])
            command = Forget if chance.random() < 0.5 else Reprocess
            bench.do(command("q", MessageFilter(offsets=((first, chance.randrange(1, 9)),))))
        for chosen in MessageFilter(), MessageFilter(states=frozenset({State.INVALID})):
            everything = bench.core.parked("q", chosen, 10**6)
            assert everything == sorted(everything, key=lambda one: (one.time, one.offset), reverse=True)
            for limit in (1, 5, parked.size // 9):
                assert bench.core.parked("q", chosen, limit) == everything[:limit]
            since = chance.choice(everything).time if everything else 1
            newer = [one for one in everything if one.time >= since]
            assert bench.core.parked("q", msgspec.structs.replace(chosen, since=since), 10**6) == newer
    assert list(parked.newest()) == sorted(parked, key=lambda piece: (piece.time, piece.first), reverse=True)


@pytest.mark.alone
def test_q21_one_of_many_parked_messages_is_found_without_looking_at_the_others() -> None:
    few, many = (steps_among(count) for count in (500, 4_000))
    for verb, taken in few.items():
        assert many[verb] < 2 * taken, verb


def steps_among(count: int) -> dict[str, int]:
    """What it takes to list the newest of so many parked messages, to forget one and to reprocess one."""
    bench = of_two_queues(count)
    bench.clear()
    bench.core.parked("q", MessageFilter(), 1)
    return {
        "parked": steps(lambda: bench.core.parked("q", MessageFilter(), 20)),
        "forget": steps(lambda: bench.forget(offsets=((count, 1),))),
        "reprocess": steps(lambda: bench.reprocess(offsets=((count - 2, 1),))),
    }
