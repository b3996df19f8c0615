"""The messages of one queue that are held in memory (Q21): the first to wait, up to a limit, unless they are large."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from remuda.log.columns import join_messages
from remuda.model.messages import Messages
from remuda.native import stores

_START: Final = itemgetter(0)
_LARGE: Final = 16 << 10
"""If the bodies of a batch have more bytes than this on average, they are read from the log: a few would fill the
memory."""


class PlainBatches:
    """Whole batches of one queue, oldest first: what is done for every message. In C where that could be built."""

    _limit: int
    _batches: deque[tuple[int, Messages]]
    size: int

    def put(self, first: int, messages: Messages) -> None:
        bodies = messages.bodies
        size = self.size + len(bodies)
        if size > self._limit:
            return
        if (len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))) <= _LARGE * len(bodies):
            self._batches.append((first, messages))
            self.size = size

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        batches = self._batches
        if len(runs) != 1 or not batches:
            return None
        first, count = runs[0]
        start, messages = batches[0]
        if start != first or len(messages.bodies) != count:
            return self._take(runs)
        batches.popleft()
        self.size -= count
        return messages

    def _take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        """As `take`, if it is not just the first batch."""
        raise NotImplementedError


if TYPE_CHECKING or stores is None:
    Batches = PlainBatches
else:
    stores.set_messages(Messages, deque)
    Batches = stores.Batches


class Window(Batches):
    """Holds whole batches, oldest first. A batch that does not fit, or has large messages, is only in the log."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches = deque()
        self._gone = 0
        """Messages of the first batch before this offset were taken."""
        self.size = 0

    def _take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        batches = self._batches
        if len(runs) != 1 or not batches:
            return None
        first, count = runs[0]
        self._drop_before(first)
        stop, parts = first + count, list[Messages]()
        while first < stop and batches:
            start, messages = batches[0]
            size = len(messages.bodies)
            if start == first and start >= self._gone and first + size <= stop:
                batches.popleft()
                self.size -= size
                parts.append(messages)
                first += size
                continue
            part = self._next(first, stop)
            if part is None:
                return None
            parts.append(part)
            first += len(part.bodies)
        return join_messages(parts) if first >= stop else None

    def _next(self, first: int, stop: int) -> Messages | None:
        """The messages from `first` on, up to `stop` or the end of their batch; None if they are not here."""
        if not self._batches:
            return None
        start, messages = self._batches[0]
        end = start + len(messages.bodies)
        low = max(start, self._gone)
        if not low <= first < end:
            return None
        if stop < end:
            self._gone = stop
            self.size -= stop - low
        else:
            self._batches.popleft()
            self.size -= end - low
        return messages.slice(first - start, stop - start)

    def discard(self, first: int, count: int) -> None:
        batches = self._batches
        # The batch before may be the first, whose messages before this offset were taken.
        at = max(bisect_left(batches, first, key=_START) - 1, 0)
        while at < len(batches) and batches[at][0] < first + count:
            start, messages = batches[at]
            if first <= max(start, self._gone) and start + len(messages.bodies) <= first + count:
                self.size -= self._left(start, messages)
                del batches[at]
            else:
                at += 1

    def _drop_before(self, first: int) -> None:
        """Drop earlier messages: they were delivered out of turn and will not be needed again."""
        while self._batches and self._batches[0][0] + len(self._batches[0][1].bodies) <= first:
            self.size -= self._left(*self._batches.popleft())

    def _left(self, start: int, messages: Messages) -> int:
        return start + len(messages.bodies) - max(start, self._gone)
