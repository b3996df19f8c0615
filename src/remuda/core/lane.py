"""Waiting messages in order, as columns: a run of neighbouring offsets with one deadline is three integers.

A million messages published in batches are a handful of runs. In the worst case, when every message stands alone,
a message costs 24 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final

NEVER: Final = (1 << 63) - 1
"""The deadline of a message that does not expire."""

Run = tuple[int, int, int]
"""First offset, count, deadline."""

_WIDTH: Final = 3
_CHUNK: Final = 2048 * _WIDTH


class _Chunk:
    """A stretch of the lane. A run taken out of its middle stays as a run of zero messages until an end reaches it."""

    __slots__ = ("ascending", "data", "head", "highest", "lowest", "soonest")

    def __init__(self) -> None:
        self.data = array("q")
        self.head = 0
        self.soonest = NEVER
        self.lowest = NEVER
        self.highest = -1
        self.ascending = True
        """Whether the runs stand in the order of their offsets, as they do unless messages came back."""

    def runs(self) -> Iterator[Run]:
        data = self.data
        for at in range(self.head, len(data), _WIDTH):
            if data[at + 1]:
                yield data[at], data[at + 1], data[at + 2]

    def append(self, first: int, count: int, deadline: int) -> None:
        self.data.extend((first, count, deadline))
        self.soonest = min(self.soonest, deadline)
        self.ascending = self.ascending and first >= self.highest
        self.lowest = min(self.lowest, first)
        self.highest = max(self.highest, first + count)

    def may_hold(self, first: int, stop: int) -> bool:
        """Whether some of these offsets may be here; exact while the runs stand in order."""
        if self.lowest >= stop or self.highest <= first:
            return False
        if not self.ascending:
            return True
        data = self.data
        at = self.head + (bisect_left(data[self.head :: _WIDTH], stop) - 1) * _WIDTH
        while at >= self.head and not data[at + 1]:
            at -= _WIDTH
        return at >= self.head and data[at] + data[at + 1] > first

    def remove(self, first: int, count: int) -> list[Run]:
        data, stop = self.data, first + count
        at = self._exactly(first)
        if at is not None and data[at + 1] == count:
            deadline = data[at + 2]
            data[at + 1] = 0
            self._trim()
            return [(first, count, deadline)]
        gone: list[Run] = []
        kept = array("q")
        for start, size, deadline in self.runs():
            low, high = max(start, first), min(start + size, stop)
            if low >= high:
                kept.extend((start, size, deadline))
                continue
            gone.append((low, high - low, deadline))
            if start < low:
                kept.extend((start, low - start, deadline))
            if high < start + size:
                kept.extend((high, start + size - high, deadline))
        if gone:
            self.data, self.head = kept, 0
        return gone

    def expire(self, now: int) -> list[Run]:
        gone: list[Run] = []
        kept = array("q")
        for run in self.runs():
            if run[2] <= now:
                gone.append(run)
            else:
                kept.extend(run)
        self.data, self.head = kept, 0
        self.soonest = min(kept[2::_WIDTH], default=NEVER)
        return gone

    def _exactly(self, first: int) -> int | None:
        """Where the run that begins at `first` stands."""
        data, at = self.data, self.head
        while True:
            try:
                at = data.index(first, at)
            except ValueError:
                return None
            if at % _WIDTH == 0 and data[at + 1]:
                return at
            at += 1

    def _trim(self) -> None:
        data = self.data
        while self.head < len(data) and not data[self.head + 1]:
            self.head += _WIDTH
        while len(data) > self.head and not data[-2]:
            del data[-_WIDTH:]

    def __bool__(self) -> bool:
        return self.head < len(self.data)


class Lane:
    """First in, first out; also from the end, by deadline, and out of the middle."""

    __slots__ = ("_chunks", "size", "soonest")

    def __init__(self) -> None:
        self._chunks: deque[_Chunk] = deque()
        self.size = 0
        self.soonest = NEVER
        """No message expires before this; it may be earlier than the first that does."""

    def append(self, first: int, count: int, deadline: int = NEVER) -> None:
        self.size += count
        if deadline < self.soonest:
            self.soonest = deadline
        if self._chunks:
            chunk = self._chunks[-1]
            data = chunk.data
            if data[-1] == deadline and data[-3] + data[-2] == first:
                data[-2] += count
                chunk.highest = max(chunk.highest, first + count)
                return
            if len(data) < _CHUNK:
                chunk.append(first, count, deadline)
                return
        chunk = _Chunk()
        chunk.append(first, count, deadline)
        self._chunks.append(chunk)

    def peek(self, count: int) -> list[Run]:
        """The oldest `count` messages."""
        found: list[Run] = []
        for first, size, deadline in self.runs():
            found.append((first, min(size, count), deadline))
            count -= size
            if count <= 0:
                break
        return found

    def peek_newest(self, count: int) -> list[Run]:
        """The newest `count` messages, newest first, one by one."""
        found: list[Run] = []
        for chunk in reversed(self._chunks):
            data = chunk.data
            for at in range(len(data) - _WIDTH, chunk.head - 1, -_WIDTH):
                first, size, deadline = data[at : at + _WIDTH]
                oldest = max(first, first + size - count)
                found += [(offset, 1, deadline) for offset in range(first + size - 1, oldest - 1, -1)]
                count -= size
                if count <= 0:
                    return found
        return found

    def remove(self, first: int, count: int) -> list[Run]:
        """Take out whatever of these offsets is here; what comes back says what was."""
        if not self._chunks:
            return []
        head = self._chunks[0]
        at, data = head.head, head.data
        if data[at] == first and data[at + 1] > count:
            data[at] += count
            data[at + 1] -= count
            self.size -= count
            return [(first, count, data[at + 2])]
        gone: list[Run] = []
        left = count
        for chunk in self._chunks:
            if chunk.may_hold(first, first + count):
                taken = chunk.remove(first, count)
                left -= sum(run[1] for run in taken)
                gone += taken
                if not left:
                    break
        self._shrink(gone)
        return gone

    def expire(self, now: int) -> list[Run]:
        """Take out every message whose deadline has come."""
        if self.soonest > now:
            return []
        gone = [run for chunk in self._chunks if chunk.soonest <= now for run in chunk.expire(now)]
        self._shrink(gone)
        self.soonest = min((chunk.soonest for chunk in self._chunks), default=NEVER)
        return gone

    def overlap(self, first: int, count: int) -> list[Run]:
        """Whatever of these offsets is here."""
        stop = first + count
        return [
            (max(start, first), min(start + size, stop) - max(start, first), deadline)
            for chunk in self._chunks
            if chunk.may_hold(first, stop)
            for start, size, deadline in chunk.runs()
            if start < stop and start + size > first
        ]

    def runs(self) -> Iterator[Run]:
        for chunk in self._chunks:
            yield from chunk.runs()

    def columns(self) -> Iterator[bytes]:
        """The runs as they are kept: three 64-bit integers each."""
        for chunk in self._chunks:
            yield array("q", (number for run in chunk.runs() for number in run)).tobytes()

    def _shrink(self, gone: list[Run]) -> None:
        self.size -= sum(run[1] for run in gone)
        if not all(self._chunks):
            self._chunks = deque(chunk for chunk in self._chunks if chunk)
