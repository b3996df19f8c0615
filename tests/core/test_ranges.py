"""Messages in flight, delayed or parked, found by offset."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.queues.delayed import ColumnMap, DelayedMessages
from remuda.core.queues.ranges import MessageRange, RangeMap
from remuda.model.state import State
from remuda.model.values.durations import MINUTE

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 8), st.integers(1, 3)), max_size=30)


@pytest.mark.parametrize("kind", [RangeMap, ColumnMap, DelayedMessages])
@settings(max_examples=200, derandomize=True, deadline=None)
@given(STEPS)
def test_pieces_are_a_map_from_offset_to_fate(kind: type[RangeMap], steps: list[tuple[bool, int, int, int]]) -> None:
    pieces, plain = kind(), dict[int, int]()
    for adds, first, count, attempt in steps:
        there = [offset for offset in range(first, first + count) if offset in plain]
        found = pieces.find(first, count)
        assert [offset for piece in found for offset in range(piece.first, piece.end)] == there
        if adds and not there:
            pieces.add(MessageRange(first, count, State.QUEUED, attempt=attempt))
            plain.update(dict.fromkeys(range(first, first + count), attempt))
        elif not adds:
            assert pieces.remove(first, count) == found
            for offset in there:
                del plain[offset]
        held = {offset: piece.attempt for piece in pieces for offset in range(piece.first, piece.end)}
        assert held == plain
        assert len(pieces) == len(plain)
        holder = pieces.holding(first)
        assert (holder is not None) is (first in plain)


@pytest.mark.parametrize("kind", [RangeMap, ColumnMap, DelayedMessages])
def test_l4_frozen_blocks_stay_as_they_are_while_the_map_changes(kind: type[RangeMap]) -> None:
    pieces, random = kind(), Random(7)
    for first in range(0, 6000, 3):
        pieces.add(MessageRange(first, 2, State.QUEUED, due=first))
    before = list(pieces)
    frozen = pieces.freeze()
    for _ in range(2000):
        first = random.randrange(6000)
        if not pieces.remove(first, 3):
            pieces.add(MessageRange(first, 1, State.QUEUED, due=1))
    assert [piece for block in frozen for piece in block] == before
    assert list(pieces) != before
    pieces.thaw()
    pieces.remove(0, 6000)
    assert not pieces.size


def test_neighbours_that_ended_alike_within_a_minute_are_one_piece() -> None:
    pieces = RangeMap()
    for offset in range(100):
        pieces.add_merged(MessageRange(offset, 1, State.DEAD, reason="x", time=offset), within=MINUTE)
    pieces.add_merged(MessageRange(100, 1, State.DEAD, reason="y", time=100), within=MINUTE)
    pieces.add_merged(MessageRange(101, 1, State.DEAD, reason="y", time=2 * MINUTE), within=MINUTE)
    assert [(piece.first, piece.count, piece.reason) for piece in pieces] == [
        (0, 100, "x"),
        (100, 1, "y"),
        (101, 1, "y"),
    ]


def test_part_of_a_range_is_taken_and_the_rest_stays() -> None:
    """Q3: what is settled leaves the rest in flight, also where a checkpoint holds on to how it was."""
    ranges = RangeMap()
    for first in (0, 10, 20):
        ranges.add(MessageRange(first, 10, State.FETCHED, lease=first))
    frozen = ranges.freeze()
    assert ranges.remove(10, 0) == []
    assert ranges.remove(10, 3) == [MessageRange(10, 3, State.FETCHED, lease=10)]
    assert ranges.remove(15, 1) == [MessageRange(15, 1, State.FETCHED, lease=10)]
    assert ranges.remove(10, 1) == [], "it is gone"
    assert [(piece.first, piece.count) for piece in ranges] == [(0, 10), (13, 2), (16, 4), (20, 10)]
    assert ranges.remove(20, 10) == [MessageRange(20, 10, State.FETCHED, lease=20)]
    assert ranges.size == 16
    assert [(piece.first, piece.count) for block in frozen for piece in block] == [(0, 10), (10, 10), (20, 10)]
    ranges.thaw()
