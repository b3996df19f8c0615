"""D2, Q5, Q9: messages that wait for a time, and many of which it is the time of."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.core import Core
from remuda.core.queues.delayed import BEHIND, Columns, DelayedMessages, Timeline
from remuda.core.queues.queue import SLICE
from remuda.core.queues.ranges import MessageRange
from remuda.core.queues.ready import NEVER
from remuda.core.queues.strategies import RoundRobin
from remuda.core.recovery import snapshot
from remuda.model.ids import Snowflakes
from remuda.model.settlement import Outcome
from remuda.model.state import State
from remuda.model.values.durations import SECOND
from tests.core.kit import NOW, PULL, Bench

PIECES = st.builds(
    MessageRange,
    first=st.integers(0, 1 << 50),
    count=st.integers(1, 1 << 31),
    state=st.sampled_from([State.QUEUED, State.RETRY]),
    deadline=st.one_of(st.just(NEVER), st.integers(0, 1 << 60)),
    priority=st.integers(0, 31),
    attempt=st.integers(-1, 1 << 40),
    due=st.integers(0, 1 << 60),
    front=st.booleans(),
    reason=st.one_of(st.none(), st.text(max_size=5)),
    time=st.one_of(st.just(0), st.integers(0, 1 << 60)),
    redelivered=st.booleans(),
    order=st.one_of(st.just(0), st.integers(BEHIND, BEHIND + 9)),
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(PIECES, max_size=8), st.randoms(use_true_random=False))
def test_columns_give_back_what_was_put_in(pieces: list[MessageRange], random: Random) -> None:
    block, plain = Columns(), list[MessageRange]()
    for piece in pieces:
        at = random.randint(0, len(plain))
        block.insert(at, piece)
        plain.insert(at, piece)
    assert list(block) == plain
    assert list(Columns.decoded(block.encoded())) == plain
    if plain:
        at = random.randrange(len(plain))
        assert list(block[at:]) == plain[at:]
        del block[at], plain[at]
        assert list(block) == plain


@pytest.mark.source
@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 50)), max_size=60))
def test_a_timeline_gives_the_soonest_first(steps: list[int | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remuda.core.queues.delayed._FRESH", 4)
        line, plain = Timeline(), list[tuple[int, int, int]]()
        for number, time in enumerate(steps):
            if time is not None:
                line.push((time, number, number))
                plain.append((time, number, number))
            elif plain:
                plain.sort()
                assert line.pop() == plain.pop(0)
            assert line.size == len(plain)
            assert line.soonest == min((time for time, _, _ in plain), default=NEVER)


def test_entries_of_messages_that_are_gone_do_not_pile_up() -> None:
    delayed = DelayedMessages()
    delayed.add(MessageRange(1 << 40, 1, State.QUEUED, due=NOW))
    for first in range(30_000):
        delayed.add(MessageRange(first, 1, State.QUEUED, due=NOW + first))
        delayed.remove(first, 1)
    assert sum(line.size for line in delayed._lines.values()) < 9_000


def test_q21_a_delayed_message_takes_less_than_a_hundred_bytes() -> None:
    """So that ten million of them fit into a gigabyte."""
    bench, count, random = Bench(PULL), 20_000, Random(1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        delayed = bench.core.queues["q"].delayed
        for first in range(count):
            delayed.add(MessageRange(first, 1, State.QUEUED, due=NOW + random.randrange(1 << 40)))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / count < 70


def due_together(count: int) -> Bench:
    bench = Bench(PULL)
    for number in range(count):
        bench.publish(str(number), due=bench.now + 1 + number % 7)
    bench.now += 1000
    return bench


def test_d2_what_is_due_together_is_done_in_slices() -> None:
    bench = due_together(5 * SLICE)
    queue = bench.core.queues["q"]
    ticks = 0
    while bench.core.next_wake() <= bench.now:
        before = queue.ready.size
        bench.core.tick(bench.now)
        assert queue.ready.size - before <= SLICE
        ticks += 1
    assert ticks >= 5
    assert (queue.ready.size, queue.delayed.size) == (5 * SLICE, 0)
    assert bench.line() == sorted(range(5 * SLICE), key=lambda number: (number % 7, number))


def test_d2_no_command_does_more_than_a_slice_of_it() -> None:
    bench = due_together(5 * SLICE)
    queue = bench.core.queues["q"]
    for number in range(4):
        left = queue.delayed.size
        dispatch = bench.pull()
        assert dispatch is not None
        bench.answer(dispatch, Outcome.NACK if number % 2 else Outcome.ACK)
        bench.publish("new")
        assert left - queue.delayed.size <= 4 * SLICE


@pytest.mark.source
@pytest.mark.parametrize("restarts", [False, True])
def test_q15_what_comes_meanwhile_stands_behind_what_was_due(restarts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.core.queues.queue.SLICE", 2)
    bench = Bench(PULL)
    for number in range(20):
        bench.publish(str(number), due=bench.now + 1 + number % 3)
    expected = sorted(range(20), key=lambda number: (number % 3, number))
    bench.now += 100
    for _ in range(6):
        bench.publish("new")
    first = bench.pull(3)
    assert first is not None
    assert [offset for offset, _ in first.runs] == expected[:3]
    core = bench.core
    if restarts:
        core = Core(Snowflakes(1))
        snapshot.load(core, snapshot.save(bench.core))
        # A clock that was set back does not hide what came before.
    core.queues["q"].release_due(-1)
    line = [offset for _, _, level in core.queues["q"].ready.levels() for run in level.runs() for offset in
            range(run[0], run[0] + run[1])]  # fmt: skip
    assert line == [*expected[3:], *range(20, 26)]


@pytest.mark.source
def test_q15_what_comes_after_a_clock_was_set_back_stands_behind_what_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remuda.core.queues.queue.SLICE", 2)
    bench = Bench(PULL)
    for number in range(20):
        bench.publish(str(number), due=bench.now + 1)
    bench.now += 1000
    bench.publish("before")
    core = Core(Snowflakes(1))
    snapshot.load(core, snapshot.save(bench.core))
    bench.core = core  # a process with another clock goes on
    bench.now -= 500
    bench.publish("after")
    bench.core.queues["q"].release_due(bench.now)
    assert bench.line() == list(range(22))


def test_q15_a_higher_priority_goes_first_though_it_came_due_among_many() -> None:
    bench = due_together(3 * SLICE)
    bench.now -= 1000
    bench.publish("urgent", priority=31, due=bench.now + 5)
    bench.now += 1000
    dispatch = bench.pull()
    assert dispatch is not None
    assert dispatch.runs == [(3 * SLICE, 1)]


def test_d2_retries_that_are_due_together_are_done_in_slices() -> None:
    bench = Bench(PULL)
    count = 3 * SLICE
    bench.publish(*map(str, range(count)))
    dispatch = bench.pull(count)
    assert dispatch is not None
    for offset in range(count):
        bench.answer(dispatch, Outcome.RETRY, [(offset, 1)], delay=1000)
    bench.now += 2000
    ticks = 0
    while bench.core.next_wake() <= bench.now:
        before = len(bench.events)
        bench.wait(0)
        assert len(bench.events) - before <= SLICE
        ticks += 1
    assert ticks >= 3
    assert bench.core.info("q").waiting == count


def test_d2_a_consumer_gets_all_that_is_due_together() -> None:
    bench = Bench({"acknowledge": "none"}, strategy_for=lambda name, options: RoundRobin())
    count = 2 * SLICE + 7
    for number in range(count):
        bench.publish(str(number), due=bench.now + 1 + number % 7)
    bench.subscribe("c", batch=10)
    bench.now += 1000
    while bench.core.next_wake() <= bench.now:
        bench.wait(0)
    for dispatch in bench.sent:
        bench.take(dispatch)
    assert sum(dispatch.count for dispatch in bench.sent) == count


@pytest.mark.source
def test_q16_the_newest_is_found_among_many_that_came_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.core.queues.queue.SLICE", 2)
    bench = Bench(PULL)
    for number in range(20):
        bench.publish(str(number), due=bench.now + 1 + number % 3)
    bench.now += 100
    dispatch = bench.pull(newest=True)
    assert dispatch is not None
    assert dispatch.runs == [(17, 1)]


def test_q5_a_message_that_expired_while_it_was_due_behind_a_key_that_may_not_go_is_not_delivered() -> None:
    """The last slice of what is due joins its lanes only when the search for a key that may go asks for more."""
    bench = Bench({**PULL, "flow_key": "key", "concurrency_per_key": 1})
    bench.publish("busy", key="x")
    bench.pull()
    for number in range(SLICE):
        bench.publish("waits", key="x", due=bench.now + 1 + number)
    bench.publish("overdue", key="y", due=bench.now + 2 * SECOND, expires=bench.now + 3 * SECOND)
    bench.now += 10 * SECOND  # and no tick
    assert bench.pull() is None
    assert [event.reason for event in bench.events if event.first == SLICE + 1] == ["expired"]
