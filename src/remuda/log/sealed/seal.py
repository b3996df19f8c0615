"""Sealing: a full segment of the tail becomes Parquet files, and is removed once they are on the disk."""

from __future__ import annotations

import contextlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from remuda.log.disk import Disk
from remuda.log.log import Log
from remuda.log.retention.drop import closed_segments
from remuda.log.sealed import id_index, queue_changes
from remuda.log.sealed.arrow import pa
from remuda.log.sealed.arrow_records import event_batch, message_batch
from remuda.log.sealed.parquet import write_sealed
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from remuda.log.segments import (
    EVENTS_TABLE,
    HEADER_BYTES,
    MESSAGES_TABLE,
    SealedFile,
    TailSegment,
    parse_header,
    set_aside_name,
)
from remuda.log.tail.record_scan import Damage, Found, RecordScan
from remuda.log.tail.regroup import regroup
from remuda.log.tail.writer import passes
from remuda.model.errors import RemudaError, StorageError
from remuda.model.records import Appended, Events, QueueChange, Record

GROUP_ROWS: Final = 8192
GROUP_BYTES: Final = 8 * 1024 * 1024
_PATIENCE: Final = 5
"""How often a segment is tried before it is sealed without what cannot be read: a bad connection may be mended."""
_SECTOR: Final = 512
_FAILURES: Final = (RemudaError, OSError, pa.ArrowException, ValueError)


class Sealed(NamedTuple):
    """What became of one segment of the tail."""

    segment: str
    files: tuple[SealedFile, ...]
    messages: int
    events: int
    bytes_before: int
    bytes_after: int
    damages: tuple[Damage, ...]
    failure: str | None = None
    """Why it is still as it was."""
    set_aside: str | None = None
    """Where the segment lies now, if not all of it could be read."""


def seal(log: Log, interrupted: Callable[[], bool] = lambda: False) -> list[Sealed]:
    """Seal every segment that is full and that no restart needs any more, in order.

    One that cannot be sealed is reported, and tried again the next time before those behind it. After a few failures it
    is sealed without what cannot be read of it, so that it does not hold up the others. `interrupted` is asked after
    each segment; the rest then waits for the next call.
    """
    sealed = []
    with log.maintenance:
        for segment in list(closed_segments(log)):
            try:
                sealed.append(_seal(log, segment, salvage=segment.failures >= _PATIENCE))
            except _FAILURES as error:
                segment.failures += not passes(error)  # a full disk is not the segment's fault
                sealed.append(Sealed(segment.name, (), 0, 0, segment.written, 0, (), str(error)))
                break
            if interrupted():
                break
    pa.default_memory_pool().release_unused()
    return sealed


def _seal(log: Log, segment: TailSegment, *, salvage: bool = False) -> Sealed:
    assert segment.end is not None
    walk = RecordScan(segment.first)
    source: Any = _Salvage(log.disk) if salvage else log.disk
    walk.meet_header(segment.name, parse_header(source.read(segment.name, 0, HEADER_BYTES)), HEADER_BYTES)
    events = _Gathered()
    named: list[QueueChange] = []
    ids = array("Q")
    sealed: list[SealedFile] = []
    size = 0

    def messages() -> Iterator[Appended]:
        for found in walk.records(source, segment, HEADER_BYTES, segment.written):
            if salvage and not _is_tabular(found.record):
                walk.damages.append(_loss(segment, found))
            elif type(found.record) is Appended:
                ids.extend(_id_entries(found.record, segment.first.offset))
                yield found.record
            elif type(found.record) is Events:
                events.add(found.record)
            elif isinstance(found.record, QueueChange) and queue_changes.is_attributed(found.record):
                named.append(found.record)

    message_rows = event_rows = 0
    batches = map(message_batch, regroup(messages(), GROUP_ROWS, GROUP_BYTES))
    if segment.end.offset > segment.first.offset:
        file = SealedFile(segment.first.offset, segment.end.offset - 1, MESSAGES_TABLE)
        message_rows, written = write_sealed(log.disk, file.name, batches, MESSAGES_SCHEMA, MESSAGES_TABLE)
        id_index.write(log.disk, file, ids)
        size += written
        sealed.append(file)
    else:
        deque(batches, maxlen=0)  # nothing but events to be read
    if segment.end.position > segment.first.position:
        file = SealedFile(segment.first.position, segment.end.position - 1, EVENTS_TABLE)
        event_rows, written = write_sealed(log.disk, file.name, events.batches(), EVENTS_SCHEMA, EVENTS_TABLE)
        size += written
        sealed.append(file)
    if named:
        queue_changes.write(log.disk, segment, named)
    walk.finish(segment.end, segment.name, segment.written)
    # Readers find the sealed rows first; only then may the frames go.
    log.catalog.seal(segment, sealed)
    aside = set_aside_name(segment) if walk.damages else None
    if aside is None:
        log.disk.remove(segment.name)
    else:
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it, which may be the damage
            log.disk.rename(segment.name, aside)
    damages = tuple(walk.damages)
    return Sealed(
        segment.name, tuple(sealed), message_rows, event_rows, segment.written, size, damages, set_aside=aside
    )


class _Salvage:
    """Reads what can be read of a file: the rest is zero, in which no frame is found."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, name: str, start: int, length: int) -> bytes:
        try:
            return self._disk.read(name, start, length)
        except (StorageError, OSError) as error:
            if passes(error):
                raise
            if length <= _SECTOR:
                return bytes(length)
        half = -(-length // 2 // _SECTOR) * _SECTOR
        return self.read(name, start, half) + self.read(name, start + half, length - half)


def _is_tabular(record: Record) -> bool:
    """Whether a record can be laid out as rows of a table."""
    try:
        if type(record) is Appended:
            message_batch(record)
        elif type(record) is Events:
            event_batch([record])
    except _FAILURES:
        return False
    return True


def _loss(segment: TailSegment, found: Found) -> Damage:
    record = found.record
    messages = range(record.first, record.first + len(record)) if type(record) is Appended else None
    events = range(record.first, record.first + len(record)) if type(record) is Events else None
    return Damage(segment.name, found.start, found.end, messages, events, 1)


def _id_entries(record: Appended, base: int) -> Iterator[int]:
    own = record.messages.ids
    if own is not None:
        for row, one in enumerate(own, record.first - base):
            yield id_index.entry(str(one), row)


class _Gathered:
    """Events of a segment until its messages are written: as columns, which take a fifth of the memory."""

    def __init__(self) -> None:
        self._full: list[pa.RecordBatch] = []
        self._group: list[Events] = []
        self._rows = 0

    def add(self, record: Events) -> None:
        self._group.append(record)
        self._rows += len(record)
        if self._rows >= GROUP_ROWS:
            self._close()

    def batches(self) -> list[pa.RecordBatch]:
        if self._group:
            self._close()
        return self._full

    def _close(self) -> None:
        self._full.append(event_batch(self._group))
        self._group, self._rows = [], 0
