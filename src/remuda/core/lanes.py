"""Lanes of waiting messages: each message is added at the end and taken from the front. In C where that could be built.

Messages mostly come one after another, so the last run of a lane is kept in three fields. If it is the only run, it is
the first as well, and nothing else needs to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from remuda.native import lanes

NEVER: Final = (1 << 63) - 1

Run = tuple[int, int, int]
"""First offset, count, deadline."""


class PlainLane:
    """A lane whose last run may be kept in fields; the subclass keeps all others."""

    __slots__ = ("_count", "_deadline", "_first", "size", "soonest")

    def __init__(self) -> None:
        self.size = 0
        self.soonest = NEVER
        """No message expires before this; it may be earlier than the first that does."""
        self._first = 0
        self._count = 0
        """Of the last run; 0 if it is kept with the others."""
        self._deadline = NEVER

    def append(self, first: int, count: int, deadline: int = NEVER) -> None:
        if self._count and self._deadline == deadline and self._first + self._count == first:
            self._count += count
        elif self.size and not self._count:
            self._extend(first, count, deadline)
        else:
            if self._count:
                self._fold()
            self._first, self._count, self._deadline = first, count, deadline
        self.size += count
        if deadline < self.soonest:
            self.soonest = deadline

    def take_first(self, count: int) -> Run:
        """Take out the first `count` messages, or as many of them as are one run. There must be one."""
        there = self._count
        if count < 1 or not there or self.size != there:
            return self._take_first(count)
        first, count = self._first, min(count, there)
        self._first = first + count
        self._count = there - count
        self.size -= count
        return first, count, self._deadline

    def _fold(self) -> None:
        """Move the last run to the others."""
        raise NotImplementedError

    def _extend(self, first: int, count: int, deadline: int) -> None:
        """Add a run behind all others, without counting it."""
        raise NotImplementedError

    def _take_first(self, count: int) -> Run:
        """As `take_first`, if the first run is not the one kept in fields."""
        raise NotImplementedError


class PlainLanes:
    """The lanes of a queue."""

    __slots__ = ("_order", "size", "soonest")

    def __init__(self) -> None:
        self._order: list[tuple[int, bool, Lane]] = []
        """Every lane that was ever needed, in the order of delivery: its priority, and whether it is for messages put
        back to the front."""
        self.size = 0
        self.soonest = NEVER

    def add(self, priority: int, front: bool, first: int, count: int, deadline: int = NEVER) -> None:
        if not front:
            for own, back, lane in self._order:
                if own == priority and not back:
                    lane.append(first, count, deadline)
                    self.size += count
                    if deadline < self.soonest:
                        self.soonest = deadline
                    return
        self._add(priority, front, first, count, deadline)

    def take_run(self, count: int, now: int) -> tuple[int, int, int, int] | None:
        """Take out the next `count` messages if they are one run, or that run if there are no others: its first offset,
        count, deadline and priority. Returns None and changes nothing if they are not, or if one may have expired."""
        if not self.size or self.soonest <= now or count < 1:
            return None
        for priority, _, lane in self._order:
            if lane.size:
                run = self._take_run(lane, count)
                return None if run is None else (*run, priority)
        raise LookupError("no message waits")

    def _take_run(self, lane: Lane, count: int) -> Run | None:
        """As `take_run`, from the first lane in which messages wait."""
        raise NotImplementedError

    def _add(self, priority: int, front: bool, first: int, count: int, deadline: int = NEVER) -> None:
        """As `add`, if there is no such lane yet, or if they go to the front."""
        raise NotImplementedError


if TYPE_CHECKING or lanes is None:
    Lane = PlainLane
    Lanes = PlainLanes
else:
    Lane = lanes.Lane
    Lanes = lanes.Lanes
