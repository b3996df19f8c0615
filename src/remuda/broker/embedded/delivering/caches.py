"""Messages held in memory for those who will ask for them next: the first of each queue, and the newest of the log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from remuda.log.tail.regroup import join_messages
from remuda.model.messages import Messages
from remuda.native.attributes import mypyc_attr

_START: Final = itemgetter(0)
_LARGE: Final = 16 << 10
"""If the bodies of a batch have more bytes than this on average, they are read from the log: a few would fill the
memory."""
_LIMIT: Final = 8 << 20
_PER_BATCH: Final = 1024
"""About how many bytes of memory a batch takes beside its messages."""
_DROPPED: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class HeadCache:
    """The first messages to wait in one queue, up to a limit (Q21): whole batches, oldest first. A batch that does not
    fit, or has large messages, is only in the log."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: deque[tuple[int, Messages]] = deque()
        self._gone = 0
        """Messages of the first batch before this offset were taken."""
        self.size = 0

    def put(self, first: int, messages: Messages) -> None:
        bodies = messages.bodies
        count = len(bodies)
        if self.size + count > self._limit:
            return
        if (len(bodies[0]) if count == 1 else sum(map(len, bodies))) <= _LARGE * count:
            self._batches.append((first, messages))
            self.size += count

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
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
        if first < stop:
            return None
        return parts[0] if len(parts) == 1 else join_messages(parts)

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
        batches = self._batches
        while batches and batches[0][0] < first and batches[0][0] + len(batches[0][1].bodies) <= first:
            start, messages = batches.popleft()
            self.size -= self._left(start, messages)

    def _left(self, start: int, messages: Messages) -> int:
        return start + len(messages.bodies) - max(start, self._gone)


class TailCache:
    """The newest messages of the log, bounded in bytes, for consumers that follow close behind: batches by their first
    offset, of which the oldest are dropped first."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._firsts: list[int] = []
        self._batches: list[tuple[Messages, int] | None] = []
        self._head = 0
        self.bytes = 0

    def put(self, first: int, messages: Messages) -> None:
        """Messages were appended from offset `first` on, later than all before them."""
        size = _PER_BATCH + messages.memory()
        self._firsts.append(first)
        self._batches.append((messages, size))
        self.bytes += size
        while self.bytes > self._limit:
            self._drop()

    def _drop(self) -> None:
        batch = self._batches[self._head]
        assert batch is not None
        self.bytes -= batch[1]
        self._batches[self._head] = None
        self._head += 1
        if self._head > _DROPPED and 2 * self._head > len(self._firsts):
            # Remove the empty places of dropped batches.
            del self._firsts[: self._head], self._batches[: self._head]
            self._head = 0

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        """The messages of these runs; None unless all are here."""
        parts: list[Messages] = []
        for first, count in runs:
            at, stop = bisect_right(self._firsts, first, self._head) - 1, first + count
            while first < stop:
                batch = self._batches[at] if self._head <= at < len(self._batches) else None
                if batch is None:
                    return None
                start, messages = self._firsts[at], batch[0]
                if not start <= first < start + len(messages.bodies):
                    return None
                part = messages.slice(first - start, stop - start)
                parts.append(part)
                first += len(part.bodies)
                at += 1
        return join_messages(parts)
