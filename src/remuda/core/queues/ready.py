"""Messages that wait to be delivered, by priority, as runs of neighbouring offsets: three integers a run, not an object
a message."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from remuda.core.queues.queue_entries import NEVER as NEVER
from remuda.core.queues.queue_entries import ReadyRun as ReadyRun

Run = tuple[int, int, int]
"""First offset, count, deadline."""
_CHUNK: Final = 3 * 1024
_WIDTH: Final = 3


class Chunk:
    """A stretch of runs: `[first, count, deadline, …]`. Runs before `head`, and those of count 0, are gone."""

    __slots__ = ("ascending", "data", "head", "highest", "lowest", "rising", "soonest")

    def __init__(self) -> None:
        self.data = array("q")
        self.head = 0
        self.soonest = NEVER
        """The first of their deadlines."""
        self.rising = True
        """Whether none expires before one in front of it: then the first is the first to expire, too."""
        self.lowest = NEVER
        self.highest = -1
        self.ascending = True
        """Whether the runs are in the order of their offsets; put-backs may come in any order."""

    def copy(self) -> Chunk:
        copy = Chunk()
        copy.data, copy.head = self.data[self.head :], 0
        copy.soonest, copy.lowest, copy.highest = self.soonest, self.lowest, self.highest
        copy.ascending, copy.rising = self.ascending, self.rising
        return copy

    def columns(self) -> bytes:
        """The runs as a snapshot stores them: three 64-bit integers each."""
        data, head = self.data, self.head
        if all(data[head + 1 :: _WIDTH]):
            return data[head:].tobytes()
        return array("q", (number for run in self.runs() for number in run)).tobytes()

    def runs(self) -> Iterator[Run]:
        data = self.data
        for at in range(self.head, len(data), _WIDTH):
            if data[at + 1]:
                yield data[at], data[at + 1], data[at + 2]

    def append(self, first: int, count: int, deadline: int) -> None:
        data = self.data
        if data and deadline < data[-1]:
            self.rising = False
        data.extend((first, count, deadline))
        if deadline < self.soonest:
            self.soonest = deadline
        if first < self.highest:
            self.ascending = False
        if first < self.lowest:
            self.lowest = first
        if first + count > self.highest:
            self.highest = first + count

    def may_hold(self, first: int, stop: int) -> bool:
        """Whether some of these offsets may be here; exact while the runs are in order."""
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
            data[at + 1], data[at + 2] = 0, NEVER
            self._trim()
            self.left(deadline)
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
            self._look_for_soonest()
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
        self._look_for_soonest()
        return gone

    def left(self, deadline: int) -> None:
        """A run with this deadline was taken out."""
        if deadline == self.soonest and deadline != NEVER:
            self._look_for_soonest()

    def _look_for_soonest(self) -> None:
        data, head = self.data, self.head
        if head >= len(data):
            self.soonest = NEVER
        else:
            self.soonest = data[head + 2] if self.rising else min(data[head + 2 :: _WIDTH])

    def _exactly(self, first: int) -> int | None:
        """The index of the run that begins at `first`."""
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


class ReadyList:
    """A lane: first in, first out; messages also leave from the end, from the middle, and by deadline.

    Messages mostly come one after another, so the last run is kept in three fields. If it is the only run, it is the
    first as well, and nothing else needs to be read.
    """

    __slots__ = ("_chunks", "_count", "_deadline", "_first", "_rising", "_shared", "_spare", "size", "soonest")

    def __init__(self) -> None:
        self.size = 0
        self.soonest = NEVER
        """The first of their deadlines."""
        self._first = 0
        self._count = 0
        """Of the last run; 0 if it is kept with the others."""
        self._deadline = NEVER
        self._rising = True
        """Whether no run expires before one in front of it."""
        self._chunks: list[Chunk] = []
        """All runs but the one kept in fields."""
        self._shared: frozenset[int] = frozenset()
        """Chunks that are frozen, by identity."""
        self._spare: Chunk | None = None
        """A chunk that ran empty, to be used again."""

    def append(self, first: int, count: int, deadline: int = NEVER) -> None:
        if not self.size:
            self._rising = True
        elif deadline < (self._deadline if self._count else self._chunks[-1].data[-1]):
            self._rising = False
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
        if not there or self.size != there:
            return self._take_first(count)
        first, deadline = self._first, self._deadline
        if count < there:
            self._first = first + count
            self._count = self.size = there - count
            return first, count, deadline
        self._count = self.size = 0
        self.soonest = NEVER
        return first, there, deadline

    def _left(self, deadline: int) -> None:
        """A run with this deadline was taken out."""
        if deadline == self.soonest and deadline != NEVER:
            self._look_for_soonest()

    def _look_for_soonest(self) -> None:
        if not self.size:
            self.soonest = NEVER
        elif self._rising:
            self.soonest = self.front()[2]
        else:
            self.soonest = min((chunk.soonest for chunk in self._chunks), default=NEVER)
            if self._count and self._deadline < self.soonest:
                self.soonest = self._deadline

    def freeze(self) -> list[Chunk]:
        """The runs as they are now, in chunks that do not change until `thaw`; the caller must not change them."""
        self._fold()
        frozen = list(self._chunks)
        self._shared = frozenset(map(id, frozen))
        return frozen

    def thaw(self) -> None:
        self._shared = frozenset()

    def _own(self, at: int) -> Chunk:
        """A chunk that may be changed."""
        chunk = self._chunks[at]
        if id(chunk) in self._shared:
            chunk = self._chunks[at] = chunk.copy()
        return chunk

    def _fold(self) -> None:
        first, count, deadline = self._first, self._count, self._deadline
        if count:
            self._extend(first, count, deadline)
            self._count = 0

    def _extend(self, first: int, count: int, deadline: int) -> None:
        if self._chunks:
            chunk = self._own(-1) if self._shared else self._chunks[-1]
            data = chunk.data
            if data[-1] == deadline and data[-3] + data[-2] == first:
                data[-2] += count
                if first + count > chunk.highest:
                    chunk.highest = first + count
                return
            if len(data) < _CHUNK:
                chunk.append(first, count, deadline)
                return
        spare = self._spare
        if spare is not None:
            self._spare = None
            data = spare.data
            del data[_WIDTH:]
            data[0], data[1], data[2] = first, count, deadline
            spare.head = 0
            spare.soonest, spare.lowest, spare.highest = deadline, first, first + count
            spare.ascending = spare.rising = True
            self._chunks.append(spare)
            return
        chunk = Chunk()
        chunk.append(first, count, deadline)
        self._chunks.append(chunk)

    def load(self, columns: bytes) -> None:
        """Append runs from `Chunk.columns`."""
        data = array("q")
        data.frombytes(columns)
        for at in range(0, len(data), _WIDTH):
            self.append(data[at], data[at + 1], data[at + 2])

    def insert(self, first: int, count: int, deadline: int = NEVER) -> None:
        """Add a run in the order of offsets, so that put-backs have their old order again. For a list that is filled in
        no other way."""
        self._fold()
        chunks = self._chunks
        if not chunks or chunks[-1].data[-_WIDTH] <= first:
            self.append(first, count, deadline)
            return
        self.size += count
        self._rising = False
        if deadline < self.soonest:
            self.soonest = deadline
        at = next(at for at, chunk in enumerate(chunks) if chunk.data[-_WIDTH] > first)
        runs = sorted([*chunks[at].runs(), (first, count, deadline)])
        half = len(runs) // 2 if len(runs) * _WIDTH > _CHUNK else 0
        chunks[at] = _chunk_of(runs[half:])
        if half:
            chunks.insert(at, _chunk_of(runs[:half]))

    def front(self) -> Run:
        """The first run. There must be one."""
        if not self._chunks:
            return self._first, self._count, self._deadline
        head = self._chunks[0]
        at, data = head.head, head.data
        return data[at], data[at + 1], data[at + 2]

    def _take_first(self, count: int) -> Run:
        if not self._chunks:
            self._fold()
        head = self._own(0) if self._shared else self._chunks[0]
        at, data = head.head, head.data
        first, there, deadline = data[at], data[at + 1], data[at + 2]
        if there > count:
            data[at] = first + count
            data[at + 1] = there - count
            self.size -= count
            return first, count, deadline
        self.size -= there
        data[at + 1] = 0
        at += _WIDTH
        while at < len(data) and not data[at + 1]:
            at += _WIDTH
        if at < len(data):
            head.head = at
            head.left(deadline)
        else:
            del self._chunks[0]
            self._spare = head
        self._left(deadline)
        return first, there, deadline

    def take(self, count: int) -> list[Run]:
        """Take out the oldest `count` messages."""
        taken: list[Run] = []
        while count > 0 and self.size:
            run = self.take_first(count)
            taken.append(run)
            count -= run[1]
        return taken

    def peek_newest(self, count: int) -> list[Run]:
        """The newest `count` messages, newest first, one by one."""
        self._fold()
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
        """Take out those of these offsets that are here, and return them."""
        if not self.size:
            return []
        start, size, _ = self.front()
        if start == first and size >= count:
            return [self.take_first(count)]
        self._fold()
        gone: list[Run] = []
        left = count
        emptied = False
        for at, chunk in enumerate(self._chunks):
            if chunk.may_hold(first, first + count):
                if self._shared:
                    chunk = self._own(at)
                taken = chunk.remove(first, count)
                left -= sum(run[1] for run in taken)
                gone += taken
                emptied = emptied or not chunk
                if not left:
                    break
        self._shrink(gone, emptied)
        return gone

    def expire(self, now: int) -> list[Run]:
        """Take out every message whose deadline has come."""
        if self.soonest > now:
            return []
        self._fold()
        gone = [
            run for at, chunk in enumerate(self._chunks) if chunk.soonest <= now for run in self._own(at).expire(now)
        ]
        self._shrink(gone, True)
        return gone

    def overlap(self, first: int, count: int) -> list[Run]:
        """Those of these offsets that are here."""
        self._fold()
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
        if self._count:
            yield self._first, self._count, self._deadline

    def _shrink(self, gone: list[Run], emptied: bool) -> None:
        self.size -= sum(run[1] for run in gone)
        if emptied:
            self._chunks = [chunk for chunk in self._chunks if chunk]
        if gone and self.soonest != NEVER:
            self._look_for_soonest()


def _chunk_of(runs: Iterable[Run]) -> Chunk:
    chunk = Chunk()
    for run in runs:
        chunk.append(*run)
    return chunk


class ReadyMessages:
    """All messages of one queue that can be delivered now: by priority, and in each those put back to the front before
    the others."""

    __slots__ = ("_levels", "_order", "size", "soonest")

    def __init__(self) -> None:
        self.size = 0
        self.soonest = NEVER
        """The first of their deadlines."""
        self._order: list[tuple[int, bool, ReadyList]] = []
        """Every lane that was ever needed, in the order of delivery: its priority, and whether it is for messages put
        back to the front."""
        self._levels: dict[tuple[int, bool], ReadyList] = {}

    def level(self, priority: int, front: bool) -> ReadyList:
        found = self._levels.get((priority, front))
        if found is None:
            found = self._levels[priority, front] = ReadyList()
            self._order.append((priority, front, found))
            self._order.sort(key=lambda item: (-item[0], not item[1]))
        return found

    def add(self, priority: int, front: bool, first: int, count: int, deadline: int = NEVER) -> None:
        level = self._levels.get((priority, front)) or self.level(priority, front)
        if front:
            level.insert(first, count, deadline)
        else:
            level.append(first, count, deadline)
        self.size += count
        if deadline < self.soonest:
            self.soonest = deadline

    def load(self, priority: int, front: bool, columns: bytes) -> None:
        """Append runs from `Chunk.columns` to a lane."""
        level = self.level(priority, front)
        before = level.size
        level.load(columns)
        self.size += level.size - before
        self.soonest = min(self.soonest, level.soonest)

    def freeze(self) -> list[tuple[int, bool, list[Chunk]]]:
        """Each lane as it is now, in chunks that do not change until `thaw`; the caller must not change them."""
        return [(priority, front, level.freeze()) for priority, front, level in self._order if level.size]

    def thaw(self) -> None:
        for _, _, level in self._order:
            level.thaw()

    def head(self) -> tuple[int, int]:
        """The priority and the offset of the first message. There must be one."""
        for priority, _, level in self._order:
            if level.size:
                return priority, level.front()[0]
        raise AssertionError("nothing waits")

    def drop(self, count: int) -> None:
        """Messages were taken out of a lane."""
        self.size -= count
        if self.soonest != NEVER:
            self._look_for_soonest()

    def _look_for_soonest(self) -> None:
        soonest = NEVER
        for _, _, level in self._order:
            if level.soonest < soonest:
                soonest = level.soonest
        self.soonest = soonest

    def take(self, count: int) -> list[ReadyRun]:
        """Take out the next `count` messages to go out."""
        taken: list[ReadyRun] = []
        for priority, _, level in self._order:
            if count <= 0:
                break
            if level.size:
                while count > 0 and level.size:
                    first, size, deadline = level.take_first(count)
                    taken.append(ReadyRun(first, size, deadline, priority))
                    count -= size
                    self.size -= size
        if self.soonest != NEVER:
            self._look_for_soonest()
        return taken

    def take_newest(self, count: int) -> list[ReadyRun]:
        """Take out the newest `count` messages of the highest priorities, newest first."""
        taken: list[ReadyRun] = []
        for priority, _, level in self._order:
            if count <= 0:
                break
            for first, size, deadline in level.peek_newest(count):
                level.remove(first, size)
                taken.append(ReadyRun(first, size, deadline, priority))
                count -= size
                self.size -= size
        if self.soonest != NEVER:
            self._look_for_soonest()
        return taken

    def remove(self, first: int, count: int) -> list[ReadyRun]:
        """Take out those of these offsets that wait."""
        if not self.size:
            return []
        found: list[ReadyRun] = []
        left = count
        for priority, _, level in self._order:
            # In recovery, messages nearly always leave from the front.
            if level.size:
                start, size, _ = level.front()
                if start == first and size >= count:
                    found = [ReadyRun(*level.remove(first, count)[0], priority)]
                    left = 0
                    break
        for priority, _, level in self._order if left else ():
            if level.size:
                runs = [ReadyRun(*run, priority) for run in level.remove(first, count)]
                found += runs
                left -= sum(run.count for run in runs)
                if not left:
                    break
        self.size -= count - left
        if self.soonest != NEVER:
            self._look_for_soonest()
        return found

    def expire(self, now: int) -> list[ReadyRun]:
        """Take out every message whose deadline has come, neighbours as one."""
        if self.soonest > now:
            return []
        gone: list[ReadyRun] = []
        for priority, _, level in self._order:
            for first, count, _ in level.expire(now):
                last = gone[-1] if gone else None
                if last is not None and last.first + last.count == first and last.priority == priority:
                    gone[-1] = ReadyRun(last.first, last.count + count, NEVER, priority)
                else:
                    gone.append(ReadyRun(first, count, NEVER, priority))
        self.size -= sum(run.count for run in gone)
        self._look_for_soonest()
        return gone

    def overlap(self, first: int, count: int) -> list[ReadyRun]:
        """Those of these offsets that wait; they stay."""
        if not self.size:
            return []
        return [ReadyRun(*run, priority) for priority, _, level in self._order for run in level.overlap(first, count)]

    def oldest(self, before: int) -> ReadyRun | None:
        """The run to evict first: of the lowest priority, regular messages before put-backs."""
        for priority, _, level in reversed(self._order):
            if level.size:
                first, count, deadline = level.front()
                if first < before:
                    return ReadyRun(first, min(count, before - first), deadline, priority)
        return None

    def levels(self) -> Iterator[tuple[int, bool, ReadyList]]:
        """Priority, whether put back to the front, and the messages; in the order of delivery."""
        return iter(self._order)

    @property
    def by_rank(self) -> tuple[int, int]:
        """How many wait with a priority above 0, and without."""
        normal = 0
        if self.size:
            for priority, _, level in self._order:
                if not priority:
                    normal += level.size
        return self.size - normal, normal
