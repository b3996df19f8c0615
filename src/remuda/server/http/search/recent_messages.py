"""The newest messages of a log, followed as it grows: a search index in memory, and what only pages ask for.

The index is the same that a directory keeps on its disk, fed by the same follower. Beside it stands what caused what,
and how long messages took. Messages older than the window are found elsewhere
(`remuda.server.http.search.searching`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from remuda.broker.spectator import Spectator
from remuda.index.follower import steps
from remuda.index.port import EVENT_COLUMNS, MESSAGE_COLUMNS, Reached
from remuda.index.query import MAX_LIMIT, Query
from remuda.index.sqlite.memory import MemoryIndex
from remuda.log.eventlog import EventLog
from remuda.model.life import LIVE
from remuda.model.message import CORRELATION
from remuda.model.message_row import MessageRow
from remuda.model.state import State
from remuda.model.values.durations import MILLISECOND, SECOND

WINDOW: Final = 50_000
SLOT: Final = 10 * SECOND
SLOTS: Final = 60
BUCKETS: Final = 12
"""Latency buckets, each four times the one below: under 1 ms, under 4 ms, … , under 17 min, and more."""
PACE: Final = 5_000
"""How many messages to read at a time while following the log."""
_SAMPLED: Final = 64
"""How many of a long run of messages that ended together are measured; each stands for its share."""
_DONE: Final = frozenset({State.SUCCESS.value, State.KICKED.value})
_SLACK: Final = 1000
"""Messages beyond the window that are dropped together."""


class RecentMessage(msgspec.Struct, gc=False):
    """What is kept of a message beside the index. There are so many that the garbage collector must not track them."""

    id: str
    created: int
    parent: str | None


class RecentLog:
    """A log as a follower reads it, with the columns that the window needs besides."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def end(self) -> tuple[int, int]:
        ends = self._log.ends()
        return ends.next_offset, ends.next_position

    def messages(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._log.message_batches(start, stop, columns=(*MESSAGE_COLUMNS, "headers"))

    def events(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._log.event_batches(start, stop, columns=EVENT_COLUMNS)

    def point(self, offset: int) -> Reached:
        """Where to begin so that no event of a message from `offset` on is left out."""
        if not offset:
            return Reached()
        for batch in self._log.message_batches(offset, columns=("offset", "created")):
            if batch.num_rows:
                return Reached(offset, self._log.position_at(batch.column("created").cast(pa.int64())[0].as_py()))
        return Reached(offset, self._log.ends().next_position)


class RecentMessages:
    """Follows a log. `catch_up` reads what is new; everything else answers from memory."""

    def __init__(self, spectator: Spectator, size: int = WINDOW) -> None:
        self._log = RecentLog(spectator.log)
        self._size = size
        self._lock = threading.RLock()
        self.index = MemoryIndex()
        self._start_over(Reached())
        self._begun = False

    def _start_over(self, reached: Reached) -> None:
        self.index.begin(reached)
        self._at = reached
        self._briefs: dict[int, RecentMessage] = {}
        self._children: dict[str, list[int]] = {}
        self._ids: dict[str, int] = {}
        self._latency: dict[str, dict[int, list[int]]] = {}
        self._order: deque[int] = deque()

    @property
    def complete(self) -> bool:
        """Whether every message of the log is in the window."""
        return self.first == 0

    @property
    def first(self) -> int:
        """The offset from which on the window holds every message."""
        return self._order[0] if self._order else self._at.offset

    def catch_up(self, limit: int = PACE) -> int:
        """Read about `limit` more messages, or to the end of the log; returns how many messages and events were new.

        A flood is read at a pace that leaves the processor to publishers and handlers, and what it carries beyond the
        window is skipped.
        """
        with self._lock:
            end = self._log.end()
            if end[0] - self._at.offset > self._size:
                self._start_over(self._log.point(max(0, end[0] - self._size)))
            before = self._at
            if end != before[:2]:
                for messages, events, reached in steps(self._log, self._at, end):
                    self.index.apply(messages, events, self._at, reached)
                    self._at = reached
                    for batch in messages:
                        self._note_messages(batch)
                        limit -= batch.num_rows
                    for batch in events:
                        self._note_events(batch)
                    if limit <= 0:
                        break
                self._evict()
            return self._at.offset - before.offset + self._at.position - before.position

    def _note_messages(self, batch: pa.RecordBatch) -> None:
        created = batch.column("created").cast(pa.int64())
        parents = pc.map_lookup(batch.column("headers"), CORRELATION, "first")
        columns = (batch.column("offset"), created, batch.column("id"), parents)
        for offset, moment, id, parent in zip(*(column.to_pylist() for column in columns), strict=True):
            self._briefs[offset] = RecentMessage(id, moment, parent)
            self._order.append(offset)
            self._ids[id] = offset
            if parent:
                self._children.setdefault(parent, []).append(offset)

    def _note_events(self, batch: pa.RecordBatch) -> None:
        columns = [batch.column(name) for name in ("queue", "state", "first", "count")]
        times = batch.column("time").cast(pa.int64())
        for time, queue, state, first, count in zip(
            times.to_pylist(), *(column.to_pylist() for column in columns), strict=True
        ):
            if state in _DONE:
                step = max(1, count // _SAMPLED)
                for offset in range(first, first + count, step):
                    if brief := self._briefs.get(offset):
                        self._measure(queue, time, time - brief.created, step)

    def _measure(self, queue: str, time: int, latency: int, weight: int) -> None:
        slots = self._latency.setdefault(queue, {})
        slot = time // SLOT
        if slot not in slots:
            slots[slot] = [0] * BUCKETS
            for old in [known for known in slots if known <= slot - SLOTS]:
                del slots[old]
        slots[slot][bucket_of(latency)] += weight

    def _evict(self) -> None:
        if len(self._order) <= self._size + min(_SLACK, self._size // 10):
            return
        begin = self._order[0]
        while len(self._order) > self._size:
            offset = self._order.popleft()
            brief = self._briefs.pop(offset)
            if self._ids.get(brief.id) == offset:
                del self._ids[brief.id]
            if brief.parent in self._children:
                kept = [child for child in self._children[brief.parent] if child != offset]
                if kept:
                    self._children[brief.parent] = kept
                else:
                    del self._children[brief.parent]
        first = self._order[0]
        self.index.forget([range(begin, first)])

    def rows(self, offsets: Iterable[int], queue: str | None = None) -> list[MessageRow]:
        """The rows of messages, as far as they are in the window."""
        chosen = tuple(offset for offset in offsets if offset in self._briefs)[:MAX_LIMIT]
        return self.index.search(Query(offsets=chosen, queue=queue, limit=MAX_LIMIT)).messages if chosen else []

    def row(self, offset: int) -> MessageRow | None:
        """A message as a row, of a queue where it ended without success if there is one."""
        rows = self.rows([offset])
        return next((row for row in rows if row.failed and row.moved_to is None), rows[0] if rows else None)

    def brief(self, offset: int) -> RecentMessage | None:
        with self._lock:
            return self._briefs.get(offset)

    def children(self, parent: str) -> list[int]:
        """Offsets of the messages that this one caused."""
        with self._lock:
            return list(self._children.get(parent, ()))

    def offset_of(self, id: str) -> int | None:
        """The offset of the newest message with this id, if it is in the window."""
        with self._lock:
            return self._ids.get(id)

    def oldest_live(self, queue: str) -> int | None:
        """The offset of the oldest unsettled message of a queue in the window."""
        return self.index.oldest(queue, LIVE)

    def latency(self, queue: str | None) -> dict[int, list[int]]:
        """Counts by time slot and latency bucket, of one queue or of all."""
        with self._lock:
            chosen = list(self._latency.values()) if queue is None else [self._latency.get(queue, {})]
            merged: dict[int, list[int]] = {}
            for slots in chosen:
                for slot, counts in slots.items():
                    known = merged.setdefault(slot, [0] * BUCKETS)
                    for bucket, count in enumerate(counts):
                        known[bucket] += count
            return merged

    def close(self) -> None:
        self.index.close()


def bucket_of(latency: int) -> int:
    """The bucket of a latency in microseconds."""
    bucket, bound = 0, MILLISECOND
    while latency >= bound and bucket < BUCKETS - 1:
        bucket, bound = bucket + 1, bound * 4
    return bucket
