"""One message's life: its record, its events, and where a given id was used (M7).

What it costs does not grow with the log: a few blocks of the tail and a few row groups are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from remuda.log.disk import Disk
from remuda.log.readers.fetch import build_index
from remuda.log.retrying import look_again
from remuda.log.sealed import id_index
from remuda.log.segments import Files, SealedFile, TailSegment
from remuda.log.tail.record_scan import RecordScan
from remuda.log.tail.segment_index import SegmentIndex
from remuda.model.message import Message
from remuda.model.messages import Messages, cell
from remuda.model.records import Appended, Event, Events, Record

if TYPE_CHECKING:
    from remuda.log.sealed.sealed_table import MessageTable, Tables

T = TypeVar("T")
_GROUPS: Final = 2
"""Row groups that are kept in memory: a caller that asks for one message often asks for its neighbour next."""
_BLOCKS: Final = 12
"""Blocks of the tail that are kept for the same reason, decoded."""


class Finder:
    """Looks for single messages. Safe to use from any thread."""

    def __init__(self, disk: Disk, files: Callable[[], Files]) -> None:
        self._disk = disk
        self._files = files
        self._covered: dict[str, list[range]] = {}
        """For each file of events, the offsets that its row groups concern; collecting only ever makes them fewer."""
        self._ids: dict[str, tuple[str, str] | None] = {}
        """For each file of messages, its least and its greatest id, where they are known."""
        self._batches: OrderedDict[tuple[str, int, str], Any] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int, int, bool], list[Record]] = OrderedDict()
        """Whole blocks of the tail, which do not change any more."""
        self._tables: Tables | None = None

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        """All events of a message, each with its time, in the order of the log."""
        return self._look(lambda files: self._events_of(files, offset))

    def message(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        """A message and the queues it was routed to; None when it is not there any more."""
        return self._look(lambda files: self._message(files, offset))

    def offset_of(self, id: str) -> int | None:
        """The offset of the newest message with this id."""
        return self._look(lambda files: next(self._offsets_of(files, id), None))

    def offsets_of(self, id: str) -> list[int]:
        """The offsets of all messages with this id, the newest first."""
        return self._look(lambda files: sorted(set(self._offsets_of(files, id)), reverse=True))

    def _look(self, look: Callable[[Files], T]) -> T:
        def once() -> T:
            files = self._files()
            if self._tables is not None:
                self._tables.keep((*files.messages, *files.events))
            _keep(self._covered, files.events)
            _keep(self._ids, files.messages)
            return look(files)

        return look_again(once)

    def _events_of(self, files: Files, offset: int) -> list[tuple[int, Event]]:
        events: list[tuple[int, Event]] = []
        following = 0
        for file in files.events:
            following = file.last + 1
            if any(offset in offsets for offsets in self._covered_by(file)):
                events += self._sealed_events(file, offset)
        for segment in files.tail:
            # A segment that ended before the message was there has no event of it.
            if segment.end is not None and segment.end.offset <= offset:
                continue
            for start, end in self._index(segment).telling(offset):
                for record in self._records(segment, start, end):
                    if isinstance(record, Events) and record.first >= following:
                        events += _events_in(record, offset)
        return events

    def _covered_by(self, file: SealedFile) -> list[range]:
        covered = self._covered.get(file.name)
        if covered is None:
            from remuda.log.sealed.sealed_table import EventTable

            table = EventTable(self._disk, file)
            covered = self._covered[file.name] = [table.concerns(group) for group in range(table.group_count)]
        return covered

    def _sealed_events(self, file: SealedFile, offset: int) -> list[tuple[int, Event]]:
        import pyarrow.compute as pc

        from remuda.log.sealed.arrow_records import to_events
        from remuda.log.sealed.sealed_table import EventTable

        events: list[tuple[int, Event]] = []
        table = EventTable(self._disk, file)
        for group in range(table.group_count):
            if offset in table.concerns(group) and (batch := table.batch(group)) is not None:
                first, count = batch.column("first"), batch.column("count")
                rows = batch.filter(pc.and_(pc.less_equal(first, offset), pc.greater(pc.add(first, count), offset)))
                for record in to_events(rows):
                    events += _events_in(record, offset)
        return events

    def _message(self, files: Files, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        for segment in reversed(files.tail):
            if segment.first.offset <= offset and (segment.end is None or offset < segment.end.offset):
                block = self._index(segment).block(offset)
                if block is None:
                    return None
                for record in self._records(segment, block.start, block.end, bodies=True):
                    if isinstance(record, Appended) and 0 <= (row := offset - record.first) < len(record):
                        return record.messages[row], cell(record.queues, row)
                return None
        for file in files.messages:
            if file.first <= offset <= file.last:
                return self._sealed_message(file, offset)
        return None

    def _sealed_message(self, file: SealedFile, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        import pyarrow.compute as pc

        from remuda.log.sealed.arrow_records import to_appended
        from remuda.log.sealed.sealed_table import Tables

        if self._tables is None:
            self._tables = Tables(self._disk)
        table = self._tables.messages(file)
        for group in table.groups(offset, offset + 1):
            batch = self._batch(table, group)
            row = -1 if batch is None else pc.index(batch.column("offset"), offset).as_py()
            if row >= 0:
                found = to_appended(batch.slice(row, 1))
                return found.messages[0], cell(found.queues, 0)
        return None

    def _batch(self, table: MessageTable, group: int) -> Any:
        # The bounds tell a rewritten file from the one before: a cached batch may hold more rows, never others.
        key = (table.file.name, group, str(table.bounds(group)))
        batch = self._batches.get(key)
        if batch is None:
            batch = table.batch(group)
        if batch is not None:
            self._batches[key] = batch
            while len(self._batches) > _GROUPS:
                self._batches.popitem(last=False)
        return batch

    def _offsets_of(self, files: Files, id: str) -> Iterator[int]:
        """From the newest on. One that is being sealed may come twice."""
        for segment in reversed(files.tail):
            for start, end in self._index(segment).holding(id):
                found: list[int] = []
                for record in self._records(segment, start, end):
                    if isinstance(record, Appended):
                        found += [record.first + row for row in _rows_of(record.messages, id)]
                yield from reversed(found)
        for file in reversed(files.messages):
            bounds = self._id_bounds(file)
            if bounds is None or bounds[0] <= id <= bounds[1]:
                yield from self._sealed_offsets_of(file, id)

    def _sealed_offsets_of(self, file: SealedFile, id: str) -> Iterator[int]:
        try:
            candidates = id_index.offsets(self._disk, file, id)
        except (FileNotFoundError, id_index.DamagedIndex):
            yield from _read_ids(self._disk, file, id)
            return
        for offset in candidates:
            found = self._sealed_message(file, offset)
            if found is not None and found[0].id == id:
                yield offset

    def _id_bounds(self, file: SealedFile) -> tuple[str, str] | None:
        if file.name not in self._ids:
            from remuda.log.sealed.sealed_table import MessageTable

            table = MessageTable(self._disk, file)
            known = [table.statistics(group, "id") for group in range(table.group_count)]
            whole = [bounds for bounds in known if bounds is not None]
            self._ids[file.name] = (
                (min(low for low, _ in whole), max(high for _, high in whole))
                if whole and len(whole) == len(known)
                else None
            )
        return self._ids[file.name]

    def _index(self, segment: TailSegment) -> SegmentIndex:
        if segment.index is None:
            segment.index = build_index(self._disk, segment)
        return segment.index

    def _records(self, segment: TailSegment, start: int, end: int | None, *, bodies: bool = False) -> Iterable[Record]:
        # The index knows of frames that are still pending: what lies beyond `written` is not there to be read yet.
        written = segment.written
        known = None if end is None or end > written else (segment.name, start, end, bodies)
        if known is not None and (kept := self._blocks.get(known)) is not None:
            return kept
        scan = RecordScan().records(self._disk, segment, start, written if known is None else known[2], bodies=bodies)
        if known is None:
            return (found.record for found in scan)
        block = self._blocks[known] = [found.record for found in scan]
        while len(self._blocks) > _BLOCKS:
            self._blocks.popitem(last=False)
        return block


def _keep(known: dict[str, Any], files: Sequence[SealedFile]) -> None:
    """Forget what is known of files that are not there any more."""
    if len(known) > len(files):
        for name in known.keys() - {file.name for file in files}:
            known.pop(name, None)


def _events_in(record: Events, offset: int) -> list[tuple[int, Event]]:
    return [(record.time, row) for row in record.rows if row.first <= offset < row.first + row.count]


def _read_ids(disk: Disk, file: SealedFile, id: str) -> Iterator[int]:
    """Look through the ids of a file that has no index."""
    from remuda.log.sealed.sealed_table import MessageTable

    table = MessageTable(disk, file)
    for group in reversed(range(table.group_count)):
        known = table.statistics(group, "id")
        if known is not None and not known[0] <= id <= known[1]:
            continue
        batch = table.batch(group, ["offset", "id"])
        if batch is None:
            continue
        ids = batch.column("id").to_pylist()
        for row in reversed([row for row, one in enumerate(ids) if one == id]):
            yield batch.column("offset")[row].as_py()


def _rows_of(messages: Messages, wanted: str) -> list[int]:
    ids = messages.ids
    if isinstance(ids, range):
        number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 20 else -1
        return [ids.index(number)] if number in ids and str(number) == wanted else []
    return [row for row, one in enumerate(ids) if one == wanted] if ids is not None and wanted in ids else []
