"""A read-only view of a directory, whether or not another process has it open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from remuda.collector import resting_collector
from remuda.core.core import Core
from remuda.core.queues.queue import Queue
from remuda.core.recovery import snapshot
from remuda.log.disk import AppendFile, DirectoryDisk
from remuda.log.log import Log
from remuda.log.retrying import look_again
from remuda.model.errors import InvalidOption, NotFound
from remuda.model.ids import Snowflakes
from remuda.model.message import Message
from remuda.model.operations.results import QueueInfo
from remuda.model.records import Event, Events
from remuda.model.state import State
from remuda.model.values.texts import nearest

_CHUNK: Final = 500
_LISTED: Final = 3
"""The most names in an error; there may be a hundred thousand queues."""

KINDS: Final = ("waiting", "delayed", "in-flight", "dead", "invalid", "not-interested")
"""The states in which a queue can hold a message."""
PARKED_KINDS: Final = {State.DEAD: "dead", State.INVALID: "invalid", State.NOT_INTERESTED: "not-interested"}


class Placement(NamedTuple):
    """Neighbouring messages of a queue in the same state for the same reason."""

    kind: str
    first: int
    size: int
    attempts: int = 0
    reason: str | None = None
    due: int | None = None
    time: int | None = None


class Row(NamedTuple):
    """One message of a queue."""

    offset: int
    where: Placement
    message: Message


class DirectoryView:
    """The queues of a directory, rebuilt from the files of its log."""

    def __init__(self, path: Path) -> None:
        with resting_collector():
            look_again(lambda: self._read(path))

    def _read(self, path: Path) -> None:
        self._log, recovery = Log.open(_ReadOnlyDisk.of_log(path), readable=snapshot.readable)
        self._core = Core(Snowflakes(0))
        self._holders: dict[str, dict[str, tuple[int, int]]] = {}
        if recovery.snapshot is not None:
            snapshot.load(self._core, recovery.snapshot)
        for record in recovery.records:
            self._core.replay(record)
            if isinstance(record, Events):
                for event in record.rows:
                    if event.state is State.FETCHED and event.consumer:
                        self._holders.setdefault(event.queue, {})[event.consumer] = (event.first, event.count)
        self.report = recovery.report
        self.report.found = dict(self._core.found)

    def unreadable(self) -> Iterator[tuple[str, int, int]]:
        """Messages that a queue holds but the log cannot read: the queue, the first and the last offset."""
        for name, queue in sorted(self._core.queues.items()):
            for first, count in queue.live():
                for start in range(first, first + count, _CHUNK):
                    wanted = (start, min(_CHUNK, first + count - start))
                    for missing, size in self._log.fetch([wanted]).missing:
                        yield name, missing, missing + size - 1

    def queues(self) -> list[QueueInfo]:
        """All queues by name. Their consumers are those that have messages in flight."""
        return [self._info(queue) for _, queue in sorted(self._core.queues.items())]

    def rows(self, queue: str, kinds: tuple[str, ...] = KINDS, limit: int | None = None) -> Iterator[Row]:
        """Messages that are waiting, in flight or ended without success, the oldest of each kind first."""
        for where in _placements(self._queue(queue), kinds):
            for first in range(where.first, where.first + where.size, _CHUNK):
                wanted = min(_CHUNK, where.first + where.size - first)
                if limit is not None:
                    wanted = min(wanted, limit)
                    limit -= wanted
                if not wanted:
                    return
                found = self._log.fetch([(first, wanted)])
                offsets = (offset for start, size in found.offsets for offset in range(start, start + size))
                for offset, message in zip(offsets, found.messages, strict=True):
                    yield Row(offset, self._explained(queue, where, offset), message)

    def newest(self, queue: str, kinds: tuple[str, ...], limit: int) -> Iterator[Message]:
        """The newest messages that are waiting, in flight or ended without success."""
        for where in sorted(_placements(self._queue(queue), kinds), key=lambda place: place.first, reverse=True):
            count = min(where.size, limit)
            limit -= count
            if count:
                yield from self._log.fetch([(where.first + where.size - count, count)]).messages

    def _queue(self, name: str) -> Queue:
        if name not in self._core.queues:
            raise NotFound(f"there is no queue {name!r}; {_known(name, sorted(self._core.queues))}")
        return self._core.queues[name]

    def _explained(self, queue: str, where: Placement, offset: int) -> Placement:
        """Add what only the log has: the reason of a failed attempt, and the number of attempts of an ended message."""
        if where.kind == "delayed" and where.attempts:
            reasons = [event.reason for event in self._events(queue, offset)]
            return where._replace(reason=reasons[-1] if reasons else None)
        if where.kind in PARKED_KINDS.values() and not where.attempts:
            tries = [event.attempt for event in self._events(queue, offset) if event.state is State.FETCHED]
            return where._replace(attempts=tries[-1] if tries else 0)
        return where

    def _events(self, queue: str, offset: int) -> list[Event]:
        return [event for _, event in self._log.events_of(offset) if event.queue == queue]

    def _info(self, queue: Queue) -> QueueInfo:
        holders = self._holders.get(queue.name, {})
        held = tuple(name for name, run in holders.items() if any(True for _ in queue.flights.find(*run)))
        return msgspec.structs.replace(self._core.info(queue.name), consumers=held)


def _known(name: str, names: list[str]) -> str:
    """The queues that exist: all of a few, else the three that are most like a wrong name."""
    if len(names) <= _LISTED:
        return f"the queues are: {', '.join(names) or 'none'}"
    return f"of {len(names)} queues the nearest are: {', '.join(nearest(name, names, _LISTED, least=0.0))}"


def check_kind(kind: str | None) -> tuple[str, ...]:
    """The kinds to show; all of them unless one is named."""
    if kind is None:
        return KINDS
    if kind not in KINDS:
        raise InvalidOption(f"--state must be one of {', '.join(KINDS)}; not {kind!r}")
    return (kind,)


def _placements(queue: Queue, kinds: tuple[str, ...]) -> Iterator[Placement]:
    if "in-flight" in kinds:
        for piece in queue.flights:
            yield Placement("in-flight", piece.first, piece.count, piece.attempt, time=piece.time or None)
    if "waiting" in kinds:
        for _, _, level in queue.ready.levels():
            for first, count, _ in level.runs():
                yield Placement("waiting", first, count, queue.attempts.get(first, 0))
    if "delayed" in kinds:
        for piece in queue.delayed:
            attempts = queue.attempts.get(piece.first, piece.attempt)
            yield Placement("delayed", piece.first, piece.count, attempts, piece.reason, piece.due, piece.time or None)
    for piece in queue.parked:
        if (kind := PARKED_KINDS[piece.state]) in kinds:
            yield Placement(kind, piece.first, piece.count, piece.attempt, piece.reason, time=piece.time)


class _ReadOnlyDisk(DirectoryDisk):
    """A directory that is only read: nothing is locked, truncated or removed."""

    def lock(self) -> None:
        pass

    def remove(self, name: str) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        pass

    def open_append(self, name: str, position: int = 0) -> AppendFile:  # type: ignore[override]
        return _NoFile()


class _NoFile:
    def write(self, data: bytes) -> None:
        pass

    def sync(self) -> None:
        pass

    def reserve(self, up_to: int) -> None:
        pass

    def truncate(self, size: int) -> None:
        pass

    def close(self) -> None:
        pass
