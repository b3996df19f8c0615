"""The history of a log: counted as far as the log goes, and answered for an hour, a day or thirty days."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from remuda.history import duration_buckets
from remuda.history.counting import EVENT_COLUMNS, MESSAGE_COLUMNS, Counting, Counts
from remuda.history.failure_kinds import Kind
from remuda.history.history_store import ALL, FOLDER, HistoryMoved, Store
from remuda.index.follower import steps
from remuda.index.port import Reached
from remuda.log.disk import DirectoryDisk
from remuda.log.eventlog import EventLog
from remuda.model.errors import InvalidOption
from remuda.model.operations.worker_orders import Worker
from remuda.model.values.durations import DAY, HOUR, MINUTE, SECOND

SPANS: Final = {"1h": (HOUR, MINUTE), "24h": (DAY, 15 * MINUTE), "30d": (30 * DAY, 6 * HOUR)}
"""What can be asked for: how far back, and in slots of which length."""
_TRIES: Final = 100
_NEAR: Final = 1000
_FLUSH: Final = 200_000
"""Messages and events that are counted together."""


class Percentiles(msgspec.Struct, frozen=True):
    """In microseconds; none where nothing was measured."""

    p50: int | None = None
    p95: int | None = None
    p99: int | None = None


class Totals(msgspec.Struct, frozen=True, rename="camel"):
    """What a queue did in a span of time."""

    queue: str
    published: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    wait: Percentiles = Percentiles()
    took: Percentiles = Percentiles()


class Point(msgspec.Struct, frozen=True, rename="camel"):
    """What was done from `start` on, until the next point."""

    start: int
    published: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    wait: Percentiles = Percentiles()
    took: Percentiles = Percentiles()


class WorkerStart(msgspec.Struct, frozen=True, rename="camel"):
    """A worker process that began."""

    name: str
    host: str
    process: int
    time: int


class FailureKind(msgspec.Struct, frozen=True, rename="camel"):
    """Failures of one kind over all queues, in the last thirty days."""

    key: str
    exception: str
    place: str
    sample: str
    first: int
    last: int
    count: int
    queues: dict[str, int]
    trend: list[int]
    """Failures in each of the last 24 hours, the newest last."""
    muted_by: str | None = None


class History:
    """Counts a log, and answers. Safe to use from any thread."""

    def __init__(self, log: EventLog, directory: Path | None) -> None:
        """Beside the log of a directory; otherwise in memory."""
        self._log = log
        self._identity = "" if directory is None else DirectoryDisk.of_log(directory).identity
        self._store = Store(None if directory is None else directory / FOLDER)
        self._counting = Counting(self._created_at)
        self._at: Reached | None = None
        self._lock = threading.Lock()
        self._pruned = 0

    def catch_up(self, limit: int | None = None, progress: Callable[[Reached], None] | None = None) -> int:
        """Count what is new, or about as many messages and events; returns how many there were."""
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return self._catch_up(limit, progress)
                except HistoryMoved:
                    self._at = None  # another process was faster: go on from where it is
            return 0

    def is_near(self, few: int) -> bool:
        """Whether no more than a few messages and events are left to count."""
        ends, at = self._log.ends(), self._at or self.reached
        return ends.next_offset - at.offset + ends.next_position - at.position <= few

    def _catch_up(self, limit: int | None, progress: Callable[[Reached], None] | None) -> int:
        begun = self._store.reached()
        ends = self._log.ends()
        end = (ends.next_offset, ends.next_position)
        another = self._store.log() != self._identity  # or an older copy of it was restored
        if begun is None or another or begun.offset > end[0] or begun.position > end[1]:
            self._store.begin(begun := self._beginning(), self._identity)
        if begun != self._at:
            self._counting = Counting(self._created_at)
        at = stored = begun
        counts, looked = Counts(), 0
        for messages, events, reached in steps(self, at, end) if end != at[:2] else ():
            for batch in messages:
                self._counting.messages(batch, counts)
            for batch in events:
                self._counting.events(batch, counts)
            at = reached
            looked = at.offset - begun.offset + at.position - begun.position
            if at.offset - stored.offset + at.position - stored.position > _FLUSH:
                self._store.add(counts, stored, at)
                counts, stored = Counts(), at
                if progress is not None:
                    progress(at)
            if limit is not None and looked >= limit:
                break
        if at != stored:
            self._store.add(counts, stored, at)
        self._at = at
        self._prune()
        return looked

    def _beginning(self) -> Reached:
        since = _now() - 30 * DAY
        return Reached(self._log.offset_at(since), self._log.position_at(since), since)

    def _prune(self) -> None:
        if (now := _now()) - self._pruned > HOUR:
            self._store.forget_before(now)
            self._pruned = now

    # The log as `steps` reads it

    def messages(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._log.message_batches(start, stop, columns=MESSAGE_COLUMNS)

    def events(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._log.event_batches(start, stop, columns=EVENT_COLUMNS)

    def _created_at(self, offsets: list[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        wanted = np.array(offsets, np.int64)
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > _NEAR) + 1):
            for batch in self._log.message_batches(int(run[0]), int(run[-1]) + 1, columns=("offset", "created")):
                numbers = batch.column("offset").to_numpy()
                chosen = np.isin(numbers, run)
                created = batch.column("created").cast(pa.int64()).to_numpy()
                found |= dict(zip(numbers[chosen].tolist(), created[chosen].tolist(), strict=True))
        return found

    # Answers

    @property
    def reached(self) -> Reached:
        return self._store.reached() or Reached()

    def points(self, span: str, queue: str | None = None, now: int | None = None) -> list[Point]:
        """What a queue, or all together, did in each slot of a span, the oldest first."""
        length, first, last = _slots(span, now)
        rows = {row[0]: row for row in self._store.slots(length, first, queue or ALL)}
        return [
            Point(start, *_values([rows[start]])) if start in rows else Point(start)
            for start in range(first, last + 1, length)
        ]

    def totals(self, span: str, now: int | None = None) -> list[Totals]:
        """What each queue did in a span, the busiest first."""
        length, first, _ = _slots(span, now)
        by_queue: dict[str, list[tuple[Any, ...]]] = {}
        for row in self._store.slots(length, first, None):
            by_queue.setdefault(row[1], []).append(row)
        found = [Totals(queue, *_values(rows)) for queue, rows in by_queue.items()]
        return sorted(found, key=lambda one: (-one.published - one.done, one.queue))

    def dead_since(self, since: int) -> dict[str, int]:
        """How many messages of each queue ended without success since a time within the last hour, to the minute."""
        rows = self._store.slots(MINUTE, since // MINUTE * MINUTE, None)
        found: dict[str, int] = {}
        for row in rows:
            found[row[1]] = found.get(row[1], 0) + row[5]
        return found

    def failures(self, now: int | None = None) -> list[FailureKind]:
        """Kinds of failures over all queues, those seen last first."""
        hour = (_now() if now is None else now) // HOUR
        muted = self._store.muted()
        rows: dict[str, list[tuple[int, str, int]]] = {}
        for key, at, queue, count in self._store.failures((hour - 30 * 24) * HOUR):
            rows.setdefault(key, []).append((at, queue, count))
        found = []
        for key, kind, sample, first, last in self._store.kinds():
            queues: dict[str, int] = {}
            trend = [0] * 24
            for at, queue, count in rows.get(key, ()):
                queues[queue] = queues.get(queue, 0) + count
                if 0 <= hour - at < 24:
                    trend[23 - (hour - at)] += count
            who = muted[key][0] if key in muted else None
            found.append(FailureKind(key, *kind, sample, first, last, sum(queues.values()), queues, trend, who))
        return sorted(found, key=lambda one: (-one.last, one.key))

    def kinds_of(self, queue: str, offsets: Iterable[int]) -> dict[int, Kind]:
        """Of what kind the failures were with which these messages ended in a queue, as far as that is known."""
        wanted = sorted(set(offsets))
        found: dict[int, Kind] = {}
        if wanted:
            for first, count, exception, place in self._store.parked(queue, wanted[0], wanted[-1]):
                kind = Kind(exception, place)
                for at in range(bisect_left(wanted, first), bisect_left(wanted, first + count)):
                    found[wanted[at]] = kind  # those that ended later come later, and count
        return found

    def mute(self, key: str, who: str) -> None:
        """List failures of a kind apart from the others."""
        self._store.mute(key, who, _now())

    def unmute(self, key: str) -> None:
        self._store.unmute(key)

    @property
    def muted(self) -> frozenset[str]:
        return frozenset(self._store.muted())

    def note_workers(self, workers: Iterable[Worker]) -> None:
        self._store.note_workers(workers)

    def starts(self, span: str, now: int | None = None) -> list[WorkerStart]:
        """When workers began in a span."""
        return [WorkerStart(*row) for row in self._store.starts(_slots(span, now)[1])]

    def close(self) -> None:
        self._store.close()


def read_span(text: str) -> str:
    if text not in SPANS:
        raise InvalidOption(f"a span is one of {', '.join(SPANS)}, not {text[:40]!r}")
    return text


def _slots(span: str, now: int | None) -> tuple[int, int, int]:
    """The length of a span's slots, and the starts of its first and last."""
    back, length = SPANS[read_span(span)]
    last = (_now() if now is None else now) // length * length
    return length, last - back + length, last


def _values(rows: list[tuple[Any, ...]]) -> Iterator[Any]:
    for column in range(2, 6):
        yield sum(row[column] for row in rows)
    for column in (6, 7):
        yield Percentiles(*duration_buckets.percentiles(duration_buckets.added(row[column] for row in rows)))


def _now() -> int:
    return int(time.time() * SECOND)
