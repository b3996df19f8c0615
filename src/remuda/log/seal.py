"""Sealing: a full segment of the tail becomes Parquet files, and is removed once they are on the disk."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from remuda.log import idindex
from remuda.log.columns import regroup
from remuda.log.log import Log
from remuda.log.parquet import write_sealed
from remuda.log.schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from remuda.log.segments import EVENTS_TABLE, HEADER_BYTES, MESSAGES_TABLE, SealedFile, TailSegment, parse_header
from remuda.log.tables import event_batch, message_batch
from remuda.log.walk import Damage, Walk
from remuda.model.errors import RemudaError
from remuda.model.records import Appended, Events

GROUP_ROWS: Final = 8192
GROUP_BYTES: Final = 8 * 1024 * 1024


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


def seal(log: Log) -> list[Sealed]:
    """Seal every segment that is full and that no restart needs any more, in order: where one ends is told by where the
    next begins. One that cannot be sealed is reported, and tried again the next time before those behind it."""
    sealed = []
    with log.maintenance:
        for segment in list(closed_segments(log)):
            try:
                sealed.append(_seal(log, segment))
            except (RemudaError, OSError, pa.ArrowException, ValueError) as error:
                sealed.append(Sealed(segment.name, (), 0, 0, segment.written, 0, (), str(error)))
                break
    return sealed


def closed_segments(log: Log) -> Iterator[TailSegment]:
    """The segments that take no more records and lie before the oldest checkpoint kept."""
    for segment in log.catalog.files().tail:
        if segment.end is not None and segment.sequence < log.settled_before:
            yield segment


def _seal(log: Log, segment: TailSegment) -> Sealed:
    assert segment.end is not None
    walk = Walk(segment.first)
    walk.meet_header(segment.name, parse_header(log.disk.read(segment.name, 0, HEADER_BYTES)), HEADER_BYTES)
    events: list[Events] = []
    ids = array("Q")
    sealed: list[SealedFile] = []
    size = 0

    def messages() -> Iterator[Appended]:
        for found in walk.records(log.disk, segment, HEADER_BYTES, segment.written):
            if type(found.record) is Appended:
                ids.extend(_id_entries(found.record, segment.first.offset))
                yield found.record
            elif type(found.record) is Events:
                events.append(found.record)

    message_rows = event_rows = 0
    batches = map(message_batch, regroup(messages(), GROUP_ROWS, GROUP_BYTES))
    if segment.end.offset > segment.first.offset:
        file = SealedFile(segment.first.offset, segment.end.offset - 1, MESSAGES_TABLE)
        message_rows, written = write_sealed(log.disk, file.name, batches, MESSAGES_SCHEMA, MESSAGES_TABLE)
        idindex.write(log.disk, file, ids)
        size += written
        sealed.append(file)
    else:
        deque(batches, maxlen=0)  # nothing but events to be read
    if segment.end.position > segment.first.position:
        file = SealedFile(segment.first.position, segment.end.position - 1, EVENTS_TABLE)
        event_rows, written = write_sealed(log.disk, file.name, _event_batches(events), EVENTS_SCHEMA, EVENTS_TABLE)
        size += written
        sealed.append(file)
    walk.finish(segment.end, segment.name, segment.written)
    # Readers find the sealed rows first; only then may the frames go.
    log.catalog.seal(segment, sealed)
    log.disk.remove(segment.name)
    return Sealed(segment.name, tuple(sealed), message_rows, event_rows, segment.written, size, tuple(walk.damages))


def _id_entries(record: Appended, base: int) -> Iterator[int]:
    own = record.messages.ids
    if own is not None:
        for row, one in enumerate(own, record.first - base):
            yield idindex.entry(str(one), row)


def _event_batches(records: Iterable[Events]) -> Iterator[pa.RecordBatch]:
    group: list[Events] = []
    rows = 0
    for record in records:
        group.append(record)
        rows += len(record)
        if rows >= GROUP_ROWS:
            yield event_batch(group)
            group, rows = [], 0
    if group:
        yield event_batch(group)
