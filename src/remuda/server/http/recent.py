"""The newest messages in memory, read from the log as it grows: their states, causes and latencies.

This answers what needs no search index: lists of recent messages by state, what caused what, where failures come
from, and how long messages took. Messages older than the window are found by the index.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from remuda.broker.spectator import Spectator
from remuda.model.durations import MILLISECOND, SECOND
from remuda.model.message import CORRELATION, Message
from remuda.model.messages import cell
from remuda.model.records import Appended, Event, is_moved
from remuda.model.state import LIVE, PARKED, State

WINDOW: Final = 50_000
EXCERPT: Final = 256
_CHUNK: Final = 1000
SLOT: Final = 10 * SECOND
SLOTS: Final = 60
BUCKETS: Final = 12
"""Latency buckets, each four times the one below: under 1 ms, under 4 ms, … , under 17 min, and more."""
PACE: Final = 5_000
"""How many messages to read at a time while following the log."""
_SAMPLED: Final = 64
"""How many of a long run of messages that ended together are measured; each stands for its share."""


class Brief(msgspec.Struct, gc=False):
    """What is kept of a message. There are so many that the garbage collector must not track them."""

    offset: int
    id: str
    topic: str
    created: int
    object: str | None
    key: str | None
    mime_type: str
    size: int
    excerpt: bytes
    parent: str | None
    queues: tuple[str, ...]

    @classmethod
    def of(cls, offset: int, message: Message, queues: tuple[str, ...]) -> Brief:
        return cls(
            offset, message.id, message.name, message.created, message.object, message.key, message.mime_type,
            len(message.body), message.body[:EXCERPT], message.headers.get(CORRELATION), queues,
        )  # fmt: skip


class Copy(msgspec.Struct, gc=False):
    """What is kept of a message in one queue."""

    modified: int
    state: State = State.QUEUED
    attempts: int = 0
    reason: str | None = None
    place: str = ""

    @property
    def is_parked(self) -> bool:
        """Whether it ended here without success and was not moved to another queue."""
        return self.state in PARKED and not is_moved(self.state, self.reason)


class Recent:
    """Follows a log. `catch_up` reads what is new; everything else answers from memory."""

    def __init__(self, spectator: Spectator, window: int = WINDOW) -> None:
        self._spectator = spectator
        self._window = window
        self._lock = threading.RLock()
        self._briefs: dict[int, Brief] = {}
        self._copies: dict[str, dict[int, Copy]] = {}
        self._children: dict[str, list[int]] = {}
        self._ids: dict[str, int] = {}
        self._latency: dict[str, dict[int, list[int]]] = {}
        self._order: deque[int] = deque()
        self.offset = 0
        self.position = 0
        self._begun = False

    @property
    def complete(self) -> bool:
        """Whether every message of the log is in the window."""
        return not self._order or self._order[0] == 0

    @property
    def first(self) -> int:
        """The offset of the oldest message in the window."""
        return self._order[0] if self._order else self.offset

    def catch_up(self, limit: int = PACE) -> int:
        """Read about `limit` more messages, or to the end of the log; returns how many messages and events were new.

        A flood is read at a pace that leaves the processor to publishers and handlers, and what it carries beyond the
        window is skipped.
        """
        with self._lock:
            ends = self._spectator.log.ends()
            end, last = ends.next_offset, ends.next_position
            if not self._begun or end - self.offset > self._window:
                self._begun = True
                self._begin(end)
            before = self.offset + self.position
            # At the end of the log, a reader would read the newest frame again, however long it is.
            for record in self._spectator.messages(self.offset) if end > self.offset else ():
                self._take(record)
                self.offset = record.first + len(record)
                limit -= len(record)
                if limit <= 0:
                    break
            if last > self.position:
                self._play_to(last)
            self._evict()
            return self.offset + self.position - before

    def _begin(self, end: int) -> None:
        """Start anew with the newest messages. Older ones are dropped, so that the window has no gap."""
        self._briefs, self._copies, self._children, self._ids = {}, {}, {}, {}
        self._order.clear()
        self.offset = max(self.offset, end - self._window)
        if self.offset:
            for record in self._spectator.log.messages(self.offset, self.offset + 1):
                start = self._spectator.log.position_at(cell(record.messages.created, 0))
                self.position = max(self.position, start)

    def _play_to(self, last: int) -> None:
        """Apply events up to a position, but none for a message that was not read yet: it would be lost."""
        for events in self._spectator.log.events(self.position, last):
            if any(event.first + event.count > self.offset for event in events.rows):
                return
            for event in events.rows:
                self._play(event, events.time)
            self.position = events.first + len(events)

    def _take(self, record: Appended) -> None:
        skip = max(0, len(record) - self._window)
        for row, message in enumerate(record.messages.slice(skip, len(record)).rows(), skip):
            offset, queues = record.first + row, cell(record.queues, row)
            brief = Brief.of(offset, message, queues)
            self._briefs[offset] = brief
            self._order.append(offset)
            self._ids[brief.id] = offset
            if brief.parent:
                self._children.setdefault(brief.parent, []).append(offset)
            for queue in queues:
                self._copies.setdefault(queue, {})[offset] = Copy(brief.created)

    def _play(self, event: Event, time: int) -> None:
        if not self._order:
            return
        first = max(event.first, self._order[0])
        stop = min(event.first + event.count, self._order[-1] + 1)
        done = event.state in (State.SUCCESS, State.KICKED)
        copies = self._copies.setdefault(event.queue, {})
        step = max(1, (stop - first) // _SAMPLED)
        for offset in range(first, stop):
            brief = self._briefs.get(offset)
            if brief is None:
                continue
            copy = copies.get(offset)
            if copy is None:
                copy = copies[offset] = Copy(time)
                brief.queues = (*brief.queues, event.queue)
            copy.state, copy.modified = event.state, time
            if event.state is State.FETCHED:
                copy.attempts = event.attempt
            elif event.reason or event.state is not State.QUEUED:
                copy.reason = event.reason or copy.reason
            if event.detail:
                copy.place = place_of(event.detail)
            if done and (offset - first) % step == 0:
                self._measure(event.queue, time, time - brief.created, step)

    def _measure(self, queue: str, time: int, latency: int, weight: int) -> None:
        slots = self._latency.setdefault(queue, {})
        slot = time // SLOT
        if slot not in slots:
            slots[slot] = [0] * BUCKETS
            for old in [known for known in slots if known <= slot - SLOTS]:
                del slots[old]
        slots[slot][bucket_of(latency)] += weight

    def _evict(self) -> None:
        while len(self._order) > self._window:
            offset = self._order.popleft()
            brief = self._briefs.pop(offset)
            for queue in brief.queues:
                self._copies[queue].pop(offset, None)
            if self._ids.get(brief.id) == offset:
                del self._ids[brief.id]
            if brief.parent in self._children:
                kept = [child for child in self._children[brief.parent] if child != offset]
                if kept:
                    self._children[brief.parent] = kept
                else:
                    del self._children[brief.parent]

    def newest(self, queue: str | None = None, below: int | None = None) -> Iterator[tuple[Brief, str, Copy]]:
        """Copies of messages, the newest first, in a stable order: by offset, then by queue."""
        with self._lock:
            # A queue's offsets are nearly sorted: only those that came from another queue are not.
            offsets = list(self._order) if queue is None else sorted(self._copies.get(queue, ()))
        if below is not None:
            del offsets[bisect_right(offsets, below) :]
        while offsets:
            chunk = offsets[: -_CHUNK - 1 : -1]
            del offsets[-_CHUNK:]
            yield from self._found(chunk, queue)

    def _found(self, offsets: list[int], wanted: str | None) -> list[tuple[Brief, str, Copy]]:
        found = []
        with self._lock:
            for offset in offsets:
                brief = self._briefs.get(offset)
                if brief is None:
                    continue
                for queue in sorted(brief.queues) if wanted is None else (wanted,):
                    copy = self._copies.get(queue, {}).get(offset)
                    if copy is not None:
                        found.append((brief, queue, copy))
        return found

    def copy(self, queue: str, offset: int) -> Copy | None:
        with self._lock:
            return self._copies.get(queue, {}).get(offset)

    def brief(self, offset: int) -> Brief | None:
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

    def oldest_waiting(self, queue: str) -> int | None:
        """When the oldest unsettled message of a queue was published, as far as it is in the window."""
        with self._lock:
            copies = self._copies.get(queue, {})
            for offset in sorted(copies):
                if copies[offset].state in LIVE and offset in self._briefs:
                    return self._briefs[offset].created
        return None

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


def bucket_of(latency: int) -> int:
    """The bucket of a latency in microseconds."""
    bucket, bound = 0, MILLISECOND
    while latency >= bound and bucket < BUCKETS - 1:
        bucket, bound = bucket + 1, bound * 4
    return bucket


def place_of(detail: str) -> str:
    """Where a traceback ends: the last file, line and function."""
    for line in reversed(detail.splitlines()):
        text = line.strip()
        if text.startswith('File "'):
            path, _, rest = text[6:].partition('", line ')
            number, _, function = rest.partition(", in ")
            return f"{path.rpartition('/')[2]}:{number}" + (f" in {function}" if function else "")
    return ""
