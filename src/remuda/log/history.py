"""One message's life, told from the whole log: its record, its events, and where a given id was used (M7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from remuda.log.disk import Disk
from remuda.log.segments import HEADER_BYTES, Catalog, Files, TailSegment
from remuda.log.walk import Walk
from remuda.model.message import Message
from remuda.model.messages import Messages, cell
from remuda.model.records import Appended, Event, Events, Record

if TYPE_CHECKING:
    from remuda.log.sealed import EventTable

T = TypeVar("T")
_ATTEMPTS: Final = 16


def events_of(disk: Disk, catalog: Catalog, offset: int) -> list[tuple[int, Event]]:
    """All events that tell of a message, each with its time, in the order of the log."""
    return _retry(catalog, lambda files: _events_of(disk, files, offset))


def record_of(disk: Disk, catalog: Catalog, offset: int) -> tuple[Message, tuple[str, ...]] | None:
    """A message and the queues it was routed to; None when it is not there any more."""
    return _retry(catalog, lambda files: _record_of(disk, files, offset))


def find_id(disk: Disk, catalog: Catalog, wanted: str) -> int | None:
    """The offset of the newest message with this id."""
    return _retry(catalog, lambda files: _find_id(disk, files, wanted))


def _retry(catalog: Catalog, look: Callable[[Files], T]) -> T:
    for _ in range(_ATTEMPTS - 1):
        try:
            return look(catalog.files())
        except FileNotFoundError:
            continue  # sealed or collected meanwhile
    return look(catalog.files())


def _events_of(disk: Disk, files: Files, offset: int) -> list[tuple[int, Event]]:
    events: list[tuple[int, Event]] = []
    following = 0
    if files.events:
        from remuda.log.sealed import EventTable
        from remuda.log.tables import to_events

        for file in files.events:
            table = EventTable(disk, file)
            for group in range(table.group_count):
                if _may_tell_of(table, group, offset) and (batch := table.batch(group)) is not None:
                    for record in to_events(batch):
                        events += _telling_of(record, offset)
        following = files.events[-1].last + 1
    for segment in files.tail:
        # A segment that ended before the message was there cannot tell of it.
        if segment.end is None or segment.end.offset > offset:
            for tail_record in _records(disk, segment):
                if type(tail_record) is Events and tail_record.first >= following:
                    events += _telling_of(tail_record, offset)
    return events


def _may_tell_of(table: EventTable, group: int, offset: int) -> bool:
    firsts, counts = table.statistics(group, "first"), table.statistics(group, "count")
    if firsts is None or counts is None:
        return True
    return bool(firsts[0] <= offset < firsts[1] + counts[1])


def _telling_of(record: Events, offset: int) -> list[tuple[int, Event]]:
    return [(record.time, row) for row in record.rows if row.first <= offset < row.first + row.count]


def _record_of(disk: Disk, files: Files, offset: int) -> tuple[Message, tuple[str, ...]] | None:
    for segment in reversed(files.tail):
        if segment.first.offset <= offset and (segment.end is None or offset < segment.end.offset):
            block = segment.index.block(offset) if segment.index is not None else None
            for record in _records(disk, segment, block.start if block else HEADER_BYTES, bodies=True):
                if type(record) is Appended and 0 <= (row := offset - record.first) < len(record):
                    return record.messages[row], cell(record.queues, row)
            return None
    for file in files.messages:
        if file.first <= offset <= file.last:
            from remuda.log.sealed import MessageTable
            from remuda.log.tables import to_appended

            table = MessageTable(disk, file)
            for group in table.groups(offset, offset + 1):
                batch = table.batch(group)
                if batch is None:
                    continue
                offsets = batch.column("offset").to_pylist()
                if offset in offsets:
                    found = to_appended(batch.slice(offsets.index(offset), 1))
                    return found.messages[0], cell(found.queues, 0)
    return None


def _find_id(disk: Disk, files: Files, wanted: str) -> int | None:
    for segment in reversed(files.tail):
        newest = None
        for record in _records(disk, segment):
            if type(record) is Appended and (row := _row_of(record.messages, wanted)) is not None:
                newest = record.first + row
        if newest is not None:
            return newest
    if not files.messages:
        return None
    from remuda.log.sealed import MessageTable

    for file in reversed(files.messages):
        table = MessageTable(disk, file)
        for group in reversed(range(table.group_count)):
            known = table.statistics(group, "id")
            if known is not None and not known[0] <= wanted <= known[1]:
                continue
            batch = table.batch(group, ["offset", "id"])
            if batch is None:
                continue
            ids = batch.column("id").to_pylist()
            if wanted in ids:
                offset: int = batch.column("offset")[len(ids) - 1 - ids[::-1].index(wanted)].as_py()
                return offset
    return None


def _row_of(messages: Messages, wanted: str) -> int | None:
    ids = messages.ids
    if isinstance(ids, range):
        number = int(wanted) if wanted.isascii() and wanted.isdigit() else -1
        return ids.index(number) if number in ids and str(number) == wanted else None
    if ids is None or wanted not in ids:
        return None
    return len(ids) - 1 - ids[::-1].index(wanted)


def _records(disk: Disk, segment: TailSegment, start: int = HEADER_BYTES, *, bodies: bool = False) -> Iterator[Record]:
    for found in Walk().records(disk, segment, start, segment.written, bodies=bodies):
        yield found.record
