"""Delayed messages (D2, Q9): numbers in columns, some 50 bytes a message and no object for any.

A message whose delay is over belongs in its lane from that time on, but it is moved there when the lane is read, or
a few at a time: a million that come due together hold up nothing. Their order follows from the times alone, so it
depends neither on when they are moved nor on a restart.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from remuda.core.queues.blocks import Columns as Columns
from remuda.core.queues.ranges import LOAD, Block, MessageRange, RangeMap
from remuda.core.queues.ready import NEVER
from remuda.model.state import State

BEHIND: Final = 1 << 62
"""Orders from here on come after every message whose delay ends at the same time."""
_FRESH: Final = 2048
_QUEUED: Final = State.QUEUED

Level = tuple[int, bool]
"""A lane of waiting messages: its priority, and whether it is that of messages put back to the front."""
Entry = tuple[int, int, int]
"""When, in which order among those of the same time, and the first offset of the range that waits for it."""


class ColumnMap(RangeMap):
    """A `RangeMap` whose blocks are columns."""

    __slots__ = ()

    def _put(self, piece: MessageRange) -> None:
        last = self._blocks[-1] if self._blocks else None
        if type(last) is Columns:
            size = len(last.firsts)
            if size < LOAD and last.firsts[-1] < piece.first:
                (self._own(-1) if self._shared else last).insert(size, piece)
                return
        super()._put(piece)

    def _locate(self, first: int) -> tuple[int, int]:
        if not self._blocks:
            return 0, 0
        at = max(bisect_right(self._firsts, first) - 1, 0)
        block = self._blocks[at]
        assert isinstance(block, Columns)
        return at, max(bisect_right(block.firsts, first) - 1, 0)

    def _block(self, piece: MessageRange) -> Block:
        block = Columns()
        block.append(piece)
        return block

    def _place(self, block: Block, first: int) -> int:
        assert isinstance(block, Columns)
        return bisect_left(block.firsts, first)


class _Sorted:
    """Entries in order, from `head` on."""

    __slots__ = ("firsts", "head", "orders", "times")

    def __init__(self, entries: list[Entry]) -> None:
        self.times = array("q", [entry[0] for entry in entries])
        self.firsts = array("q", [entry[2] for entry in entries])
        self.orders: array[int] | None = None
        """None where each order is the first offset."""
        if any(entry[1] != entry[2] for entry in entries):
            self.orders = array("q", [entry[1] for entry in entries])
        self.head = 0

    def entry(self, at: int) -> Entry:
        first = self.firsts[at]
        return self.times[at], first if self.orders is None else self.orders[at], first


class Timeline:
    """Entries by time. The newest are a small heap; the others lie sorted in columns, 16 bytes each."""

    __slots__ = ("_fresh", "_heads", "_made", "_sorted", "arrived", "size", "soonest")

    def __init__(self) -> None:
        self._fresh: list[Entry] = []
        self._sorted: dict[int, _Sorted] = {}
        self._heads: list[tuple[int, int, int, int]] = []
        """The first entry of each sorted stretch, and the stretch's number."""
        self._made = 0
        self.size = 0
        self.soonest = NEVER
        """The first time of all."""
        self.arrived = 0
        """When the newest message came that must wait for due ones here: everything up to then counts as due, even if
        the clock was set back since."""

    def push(self, entry: Entry) -> None:
        heapq.heappush(self._fresh, entry)
        self.size += 1
        if entry[0] < self.soonest:
            self.soonest = entry[0]
        if len(self._fresh) >= _FRESH:
            self._fresh.sort()
            self._add(self._fresh)
            self._fresh = []

    def pop(self) -> Entry:
        """Take out the first. There must be one."""
        fresh, heads = self._fresh, self._heads
        self.size -= 1
        if not heads or (fresh and fresh[0] < heads[0][:3]):
            first = heapq.heappop(fresh)
        else:
            time, order, offset, number = heads[0]
            first = time, order, offset
            stretch = self._sorted[number]
            stretch.head += 1
            if stretch.head < len(stretch.times):
                heapq.heapreplace(heads, (*stretch.entry(stretch.head), number))
            else:
                heapq.heappop(heads)
                del self._sorted[number]
        self._note_soonest()
        return first

    def sweep(self, stands: Callable[[Entry], bool]) -> None:
        """Drop stale entries, those for which `stands` is false, from the two sorted stretches whose turn it is."""
        numbers = list(islice(self._sorted, 2))
        if not numbers:
            return
        stretches = [self._sorted.pop(number) for number in numbers]
        self._heads = [head for head in self._heads if head[3] not in numbers]
        heapq.heapify(self._heads)
        entries = [one.entry(at) for one in stretches for at in range(one.head, len(one.times))]
        standing = sorted(entry for entry in entries if stands(entry))
        self.size -= len(entries) - len(standing)
        if standing:
            self._add(standing)
        self._note_soonest()

    def is_due(self, time: int) -> bool:
        return self.soonest <= time or (self.arrived > 0 and self.soonest <= self.arrived)

    def _add(self, entries: list[Entry]) -> None:
        self._made += 1
        self._sorted[self._made] = _Sorted(entries)
        heapq.heappush(self._heads, (*entries[0], self._made))

    def _note_soonest(self) -> None:
        fresh = self._fresh[0][0] if self._fresh else NEVER
        sorted_ = self._heads[0][0] if self._heads else NEVER
        self.soonest = fresh if fresh < sorted_ else sorted_
        if self.soonest > self.arrived:
            self.arrived = 0


class DelayedMessages(ColumnMap):
    """All delayed messages of one queue: by offset, by lane, and by alarm where something must be done at a time."""

    __slots__ = ("_alarms", "_levels", "_lines", "_orders", "_sweeps", "soonest")

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[Level, Timeline] = {}
        """Messages that belong in a lane as soon as their delay is over, which no event records."""
        self._levels: list[Level] = []
        """The keys of `_lines` in the order of delivery."""
        self._alarms = Timeline()
        """Messages to be retried, and those that expire before their delay is over, which an event records."""
        self._orders = 0
        self._sweeps = _FRESH
        self.soonest = NEVER
        """Nothing here is due before this; 0 while messages wait behind others whose delay is over."""

    def add(self, piece: MessageRange) -> None:
        self.size += piece.count
        self._put(piece)
        self._plan(piece)

    def next_order(self) -> int:
        """The order of a message that comes while others, whose delay is over, must still join the lane before it."""
        self._orders += 1
        return BEHIND + self._orders

    def behind(self, level: Level, time: int) -> int:
        """The time for such a message: no earlier than that of the messages before it, even if the clock was set back
        since they came."""
        line = self._lines.get(level)
        return time if line is None else max(time, line.arrived)

    def _plan(self, piece: MessageRange) -> None:
        due, deadline, first = piece.due, piece.deadline, piece.first
        sooner = due if due < deadline else deadline
        queued = piece.state is _QUEUED
        if not queued or (deadline < due and not piece.order):
            self._alarms.push((sooner, first, first))
        if queued:
            line = self._line((piece.priority, piece.front))
            line.push((due, piece.order or first, first))
            if piece.order:
                line.arrived = max(line.arrived, due)
                self._orders = max(self._orders, piece.order - BEHIND)
        soonest = 0 if piece.order else sooner
        if soonest < self.soonest:
            self.soonest = soonest
        self._sweeps -= 1
        if not self._sweeps:
            self._sweep()

    def remove(self, first: int, count: int) -> list[MessageRange]:
        taken = super().remove(first, count)
        if not self.size:
            self._forget_times()
        elif taken:
            rest = self.holding(first + count)
            if rest is not None and rest.first == first + count:
                self._plan(rest)
        return taken

    # What is due

    def has_due(self, time: int, level: Level | None = None) -> bool:
        """Whether due messages of any lane, or of this one, have yet to join it."""
        if level is None:
            return any(line.is_due(time) for line in self._lines.values())
        line = self._lines.get(level)
        return line is not None and line.is_due(time)

    def due_levels(self, time: int) -> list[Level]:
        """The lanes that due messages have yet to join."""
        if self.soonest > time:
            return []
        return [level for level in self._levels if self._lines[level].is_due(time)]

    def due(self, time: int, most: int, level: Level | None = None) -> Iterator[MessageRange]:
        """Take out at most `most` ranges whose delay is over: of one lane, or of all in the order of delivery. A lane
        of put-backs, which is kept in the order of offsets, gets all of its due ranges."""
        for one in [level] if level is not None else list(self._levels):
            line = self._lines.get(one)
            while line is not None and (most > 0 or one[1]) and line.is_due(time):
                piece = self._take_standing(*line.pop())
                if piece is not None:
                    most -= 1
                    yield piece
        if self.size:
            self._note_soonest()
        else:
            self._forget_times()

    def alarms(self, time: int, most: int) -> Iterator[MessageRange]:
        """At most `most` ranges that are to be retried or have expired; the caller takes them out."""
        while most > 0 and self._alarms.soonest <= time:
            _, _, first = self._alarms.pop()
            piece = self.holding(first)
            # What was settled or cleared while it waited is no longer here, or waits for another time.
            if piece is not None and piece.first == first and min(piece.due, piece.deadline) <= time:
                most -= 1
                yield piece
        self._note_soonest()

    def _line(self, level: Level) -> Timeline:
        line = self._lines.get(level)
        if line is None:
            line = self._lines[level] = Timeline()
            self._levels.append(level)
            self._levels.sort(key=lambda one: (-one[0], not one[1]))
        return line

    def _standing(self, at: int, order: int, first: int) -> MessageRange | None:
        """The range that an entry stands for, unless it is gone or waits for another time."""
        piece = self.holding(first)
        if piece is None or piece.first != first or piece.due != at or (piece.order or first) != order:
            return None
        return piece if piece.state is State.QUEUED else None

    def _take_standing(self, at: int, order: int, first: int) -> MessageRange | None:
        """As `_standing`, and take it out."""
        if not self._blocks:
            return None
        number, within = self._locate(first)
        piece = self._blocks[number][within]
        if piece.first != first or piece.due != at or (piece.order or first) != order:
            return None
        if piece.state is not State.QUEUED:
            return None
        self.size -= piece.count
        self._delete(number, within, within + 1)
        return piece

    def _forget_times(self) -> None:
        """Drop all entries: nothing is delayed any more."""
        self._lines.clear()
        self._levels.clear()
        self._alarms = Timeline()
        self.soonest = NEVER

    def _note_soonest(self) -> None:
        soonest = self._alarms.soonest
        for line in self._lines.values():
            if line.arrived:
                soonest = 0
            elif line.soonest < soonest:
                soonest = line.soonest
        self.soonest = soonest

    def _sweep(self) -> None:
        """If most entries are stale, drop some: no more work than the entries added since the last sweep."""
        self._sweeps = _FRESH
        lines = [*self._lines.values(), self._alarms]
        if sum(line.size for line in lines) > 2 * self.range_count() + len(lines) * _FRESH:
            for line in self._lines.values():
                line.sweep(lambda entry: self._standing(*entry) is not None)
            self._alarms.sweep(self._is_alarm)
            self._note_soonest()

    def _is_alarm(self, entry: Entry) -> bool:
        piece = self.holding(entry[2])
        return piece is not None and piece.first == entry[2] and min(piece.due, piece.deadline) == entry[0]
