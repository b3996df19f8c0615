"""Keeps an index up to date with its log, from any point, and resumes where it was after any end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from remuda.index.port import IndexMoved, Lag, Reached, SearchIndex, Tables
from remuda.index.source import LogSource
from remuda.model.errors import Conflict

BATCH: Final = 20_000
"""Messages that are applied at once."""
EVENTS: Final = 4 * BATCH
_PART_BYTES: Final = 16 << 20
POLL: Final = 0.2
GATHER: Final = 0.1
"""Seconds from one look to the next at least: many messages at once cost half of what a few at a time do."""
LOOK: Final = 60.0
"""Seconds between looks for messages that were collected."""
_TRIES: Final = 100


class Follower:
    """Applies what the log holds, messages before their events."""

    def __init__(self, index: SearchIndex, log: LogSource, *, start: int = 0) -> None:
        """`start` is the offset at which an index begins that holds nothing yet."""
        self._index = index
        self._log = log
        self._start = start
        self._looked: float | None = None

    def catch_up(self, progress: Callable[[Reached], None] | None = None) -> Reached:
        """Apply all there is now. Returns the point that was reached."""
        for _ in range(_TRIES):
            try:
                return self._catch_up(progress)
            except IndexMoved:
                continue  # another follower was faster: go on from where it is
        raise Conflict("another process follows the log into this index; one is enough")

    def follow(self, stop: threading.Event, progress: Callable[[Reached], None] | None = None) -> None:
        """Keep up with the log until `stop` is set, with a short pause when little is new."""
        while not stop.is_set():
            began, before = time.monotonic(), self._index.reached()
            reached = self.catch_up(progress)
            if self._looked is None or time.monotonic() - self._looked >= LOOK:
                self.forget_collected()
            rest = POLL if reached == before else began + GATHER - time.monotonic()
            if rest > 0:
                stop.wait(rest)

    def forget_collected(self) -> None:
        """Remove the messages that the log no longer has."""
        reached = self._index.reached()
        if reached is not None:
            gone = [offsets for offsets in self._log.gone(reached.offset) if offsets]
            if gone:
                self._index.forget(gone)
        self._looked = time.monotonic()

    def lag(self) -> Lag:
        return lag(self._index, self._log)

    def _catch_up(self, progress: Callable[[Reached], None] | None) -> Reached:
        at = self._index.reached()
        if at is None:
            at = self._log.point(self._start)
            self._index.begin(at)
            self._index.finish()
        end = self._log.end()
        check_same_log(at, end)
        for messages, events, reached in steps(self._log, at, end):
            self._index.apply(messages, events, at, reached)
            at = reached
            if progress is not None:
                progress(at)
        return at


def steps(
    log: Tables, at: Reached, end: tuple[int, int]
) -> Iterator[tuple[list[pa.RecordBatch], list[pa.RecordBatch], Reached]]:
    """What lies between two points, in steps: messages, then all events of the messages so far."""
    messages = _parts(log.messages(at.offset, end[0]), BATCH)
    events = _Events(_parts(log.events(at.position, end[1]), EVENTS))
    offset, position, moment = at
    while True:
        found = next(messages, None)
        new = [] if found is None else [found]
        if found is not None:
            offset = found.column("offset")[-1].as_py() + 1
            moment = max(moment, _latest(found, "created"))
        for batch in events.before(None if found is None else offset):
            position = batch.column("position")[-1].as_py() + 1
            moment = max(moment, _latest(batch, "time"))
            yield new, [batch], Reached(offset, position, moment)
            new = []
        if found is None:
            break
        if new:
            yield new, [], Reached(offset, position, moment)
    if (offset, position) != end:  # the last rows are lost to damage
        yield [], [], Reached(*end, moment)


class _Events:
    """Batches of events that can be taken up to the first event of a message that is not reached yet."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def before(self, offset: int | None) -> Iterator[pa.RecordBatch]:
        while (batch := self._rest if self._rest is not None else next(self._batches, None)) is not None:
            self._rest = None
            if offset is not None:
                ends = pc.add(batch.column("first"), batch.column("count"))
                row = pc.index(pc.greater(ends, offset), True).as_py()
                if row >= 0:
                    self._rest = batch.slice(row)
                    if row:
                        yield batch.slice(0, row)
                    return
            yield batch


def rebuild(
    index: SearchIndex, log: LogSource, *, start: int = 0, progress: Callable[[Reached], None] | None = None
) -> Reached:
    """Rebuild the index from an offset. The old one answers until the new one is complete."""
    at = log.point(start)
    index.begin(at)
    while (end := log.end()) != at[:2]:
        for messages, events, reached in steps(log, at, end):
            index.apply(messages, events, at, reached)
            at = reached
            if progress is not None:
                progress(at)
    gone = [offsets for offsets in log.gone(at.offset) if offsets]
    if gone:
        index.forget(gone)
    index.finish()
    return at


def lag(index: SearchIndex, log: LogSource) -> Lag:
    """How far an index is behind a log."""
    end = log.end()
    at = index.reached() or Reached()
    check_same_log(at, end)
    messages, events = max(end[0] - at.offset, 0), max(end[1] - at.position, 0)
    late = time.time() - at.time / 1e6 if (messages or events) and at.time else 0.0
    return Lag(messages, events, round(max(late, 0.0), 3))


def check_same_log(at: Reached, end: tuple[int, int]) -> None:
    if at.offset > end[0] or at.position > end[1]:
        raise Conflict(
            f"the index has reached message {at.offset} and event {at.position}, but the log ends at {end[0]} and "
            f"{end[1]}: the index belongs to another log, or the log was restored from a copy. "
            "Rebuild it: remuda index build"
        )


def _parts(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows, about `rows` at a time: each part is a transaction, which has a price of its own."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            if held and (count + part.num_rows > rows or size + part.nbytes > _PART_BYTES):
                yield pa.concat_batches(held)
                held, count, size = [], 0, 0
            held.append(part)
            count, size = count + part.num_rows, size + part.nbytes
    if held:
        yield pa.concat_batches(held)


def _latest(batch: pa.RecordBatch, column: str) -> int:
    found: int = pc.max(batch.column(column).cast(pa.int64())).as_py()
    return found
