"""Spectators: reading a log from any offset or time, beside its writer or without one, changing nothing (L8)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from remuda.log import ledger as ledgers
from remuda.log.arrow import pa, pc
from remuda.log.columns import offset_since, regroup, slice_appended
from remuda.log.disk import Disk
from remuda.log.eventlog import Ends, follow
from remuda.log.history import Finder
from remuda.log.ledger import Ledger
from remuda.log.seal import GROUP_BYTES, GROUP_ROWS
from remuda.log.sealed import Table, Tables
from remuda.log.segments import Counters, Files, SealedFile, TailSegment
from remuda.log.tables import event_batch, message_batch, to_appended, to_events
from remuda.log.view import Lister, Listing, SegmentView
from remuda.model.errors import StorageError
from remuda.model.message import Message
from remuda.model.records import Appended, Event, Events, QueueChange

T = TypeVar("T")
Wanted: TypeAlias = Callable[[Table, int], bool]
"""Whether a row group of a sealed file can hold a row that is looked for."""
_ATTEMPTS: Final = 64
_NO_END: Final = 1 << 62


class _Piece(NamedTuple):
    """Rows from number `first` to before `stop`: sealed ones as a batch, those of the tail as records."""

    first: int
    stop: int
    rows: Any


class _Selection(NamedTuple):
    """Which columns and row groups to read; the others may be skipped."""

    columns: Sequence[str] | None = None
    wanted: Wanted | None = None

    @property
    def bodies(self) -> bool:
        return self.columns is None or "body" in self.columns


_EVERYTHING: Final = _Selection()


class Reader:
    """The event log on a disk. Each call reads what is there now; call again from its end for what came since."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lister = Lister(disk)
        self._finder = Finder(disk, self._files)
        self.tables = Tables(disk)
        """Those of the files that were listed last."""
        self._gaps: dict[range, None] = {}
        self._event_gaps: dict[range, None] = {}

    @property
    def gaps(self) -> tuple[range, ...]:
        """Offsets found missing while reading: collected, or lost to damage."""
        return tuple(self._gaps)

    @property
    def event_gaps(self) -> tuple[range, ...]:
        """Positions found missing while reading."""
        return tuple(self._event_gaps)

    def message_batches(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        wanted: Wanted | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Messages from offset `start` to before `stop`, in order, as Arrow batches.

        Of some `columns` only, the offset being the first of them; without the row groups that are not `wanted`.
        """
        selection = _Selection(columns, wanted)
        for rows in self._read(self._message_pieces, self._gaps, start, stop, selection):
            yield message_batch(rows, columns) if isinstance(rows, Appended) else rows

    def event_batches(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        wanted: Wanted | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Events from position `start` to before `stop`, in order, as Arrow batches; else as for messages."""
        selection = _Selection(columns, wanted)
        for rows in self._read(self._event_pieces, self._event_gaps, start, stop, selection):
            yield event_batch(rows, columns) if isinstance(rows, list) else rows

    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[Appended]:
        """The same messages as records."""
        for rows in self._read(self._message_pieces, self._gaps, start, stop):
            if isinstance(rows, Appended):
                yield rows
            else:
                yield from map(to_appended, neighbours(rows))

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Events]:
        """The same events as records."""
        for rows in self._read(self._event_pieces, self._event_gaps, start, stop):
            yield from rows if isinstance(rows, list) else to_events(rows)

    def end(self) -> tuple[int, int]:
        """The offset and the position that come next."""
        return _retry(self._end)

    def ends(self) -> Ends:
        return _retry(self._ends)

    def offset_of(self, id: str) -> int | None:
        """The offset of the newest message with this id."""
        return self._finder.offset_of(id)

    def offset_of_last(self, rows: int) -> int:
        """The offset at which the last `rows` messages begin; the first if there are fewer."""
        return max(self.end()[0] - rows, 0)

    def position_of_last(self, rows: int) -> int:
        """The position at which the last `rows` events begin; the first if there are fewer."""
        return max(self.end()[1] - rows, 0)

    def message(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        """A message and the queues it was routed to; None when it is not there any more."""
        return self._finder.message(offset)

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        """All events of a message, each with its time, in order."""
        return self._finder.events_of(offset)

    def changes(self, queue: str | None = None) -> list[QueueChange]:
        """Changes of a queue, or of all, that name who made them, oldest first."""
        return [change for change in _retry(self._lister.changes) if queue is None or change.queue == queue]

    def follow_messages(
        self, start: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Appended]:
        """Messages from an offset, waiting for more until `stop` is set."""
        return follow(self.messages, start, poll, stop)

    def follow_events(
        self, start: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Events]:
        """Events from a position, waiting for more until `stop` is set."""
        return follow(self.events, start, poll, stop)

    def offset_at(self, time: int) -> int:
        """The first offset of a message created at `time` (microseconds) or later; the next one when there is none."""
        return _retry(lambda: self._offset_at(time))

    def position_at(self, time: int) -> int:
        """The first position of an event at `time` (microseconds) or later; the next one when there is none."""
        return _retry(lambda: self._position_at(time))

    def _read(
        self,
        pieces: Callable[[int, int, _Selection], Iterator[_Piece]],
        gaps: dict[range, None],
        start: int,
        stop: int | None,
        selection: _Selection = _EVERYTHING,
    ) -> Iterator[Any]:
        limit = _NO_END if stop is None else stop
        gaps = gaps if selection.wanted is None else {}  # what is not wanted is not missing
        cursor, attempts = start, 0
        while True:
            try:
                for first, following, rows in pieces(cursor, limit, selection):
                    _note_gap(gaps, cursor, first)
                    if isinstance(rows, pa.RecordBatch) and following - first != rows.num_rows:
                        for before, after in pairwise(rows.column(0).to_pylist()):
                            _note_gap(gaps, before + 1, after)
                    cursor, attempts = following, 0
                    yield rows
                return
            except FileNotFoundError as error:
                attempts = _again(attempts, error)

    def _message_pieces(self, cursor: int, limit: int, selection: _Selection) -> Iterator[_Piece]:
        listing = self.listed()
        for source in _in_order(listing, listing.messages, lambda view: view.first.offset):
            if isinstance(source, SealedFile):
                if source.last < cursor or source.first >= limit:
                    continue
                for piece in _sealed_pieces(self.tables.messages(source), cursor, limit, selection):
                    yield piece
                    cursor = piece.stop
            elif (following := _following(listing, source)) is None or following.first.offset > cursor:
                for record in regroup(_messages(source, cursor, limit, selection), GROUP_ROWS, GROUP_BYTES):
                    cursor = record.first + len(record)
                    yield _Piece(record.first, cursor, record)
            if cursor >= limit:
                return

    def _event_pieces(self, cursor: int, limit: int, selection: _Selection) -> Iterator[_Piece]:
        listing = self.listed()
        for source in _in_order(listing, listing.events, lambda view: view.first.position):
            if isinstance(source, SealedFile):
                if source.last < cursor or source.first >= limit:
                    continue
                for piece in _sealed_pieces(self.tables.events(source), cursor, limit, selection):
                    yield piece
                    cursor = piece.stop
            elif (following := _following(listing, source)) is None or following.first.position > cursor:
                for records in _groups(_events(source, cursor, limit)):
                    cursor = records[-1].first + len(records[-1])
                    yield _Piece(records[0].first, cursor, records)
            if cursor >= limit:
                return

    def listed(self) -> Listing:
        """The files there are now."""
        listing = self._lister.list()
        self.tables.keep((*listing.messages, *listing.events))
        return listing

    def _end(self) -> tuple[int, int]:
        listing = self.listed()
        offset = max((file.last + 1 for file in listing.messages), default=0)
        position = max((file.last + 1 for file in listing.events), default=0)
        if listing.tail:
            end = listing.tail[-1].read_on()
            return max(offset, end.offset), max(position, end.position)
        # All is sealed, and the last of it may have been collected.
        collected = self._collected()
        return max([offset, *(stop for _, stop in collected.messages)]), max(
            [position, *(stop for _, stop in collected.events)]
        )

    def _collected(self) -> Ledger:
        try:
            return ledgers.read(self._disk) or Ledger()
        except StorageError:
            return Ledger()  # the files that are left show how far the log goes

    def _ends(self) -> Ends:
        offset, position = self._end()
        listing = self._lister.list()
        first = listing.tail[0].first if listing.tail else Counters(0, offset, position)
        return Ends(
            min([first.offset, *(file.first for file in listing.messages[:1])]),
            offset,
            min([first.position, *(file.first for file in listing.events[:1])]),
            position,
        )

    def _files(self) -> Files:
        listing = self._lister.list()
        tail: list[TailSegment] = []
        for view in listing.tail:
            segment = view.segment()
            if tail:
                tail[-1].end = segment.first
            tail.append(segment)
        return Files(tuple(tail), listing.messages, listing.events)

    def _offset_at(self, time: int) -> int:
        listing = self.listed()
        for source in _in_order(listing, listing.messages, lambda view: view.first.offset):
            if isinstance(source, SealedFile):
                found = _sealed_number_at(self.tables.messages(source), "created", time)
                if found is not None:
                    return found
                continue
            for record in source.records(bodies=False):
                if isinstance(record, Appended) and (offset := offset_since(record, time)) is not None:
                    return offset
        return self._end()[0]

    def _position_at(self, time: int) -> int:
        listing = self.listed()
        for source in _in_order(listing, listing.events, lambda view: view.first.position):
            if isinstance(source, SealedFile):
                found = _sealed_number_at(self.tables.events(source), "time", time)
                if found is not None:
                    return found
                continue
            for record in source.records(bodies=False):
                if isinstance(record, Events) and record.time >= time:
                    return record.first
        return self._end()[1]


def _in_order(
    listing: Listing, sealed: Iterable[SealedFile], first: Callable[[SegmentView], int]
) -> list[SealedFile | SegmentView]:
    """All files by the number they begin with; a segment that is being sealed stands behind its sealed file."""
    sources: list[tuple[int, int, SealedFile | SegmentView]] = [(file.first, 0, file) for file in sealed]
    sources += [(first(view), 1, view) for view in listing.tail]
    return [source for _, _, source in sorted(sources, key=lambda entry: entry[:2])]


def _following(listing: Listing, view: SegmentView) -> SegmentView | None:
    at = listing.tail.index(view) + 1
    return listing.tail[at] if at < len(listing.tail) else None


def _sealed_pieces(table: Table, cursor: int, limit: int, selection: _Selection) -> Iterator[_Piece]:
    for group in table.groups(cursor, limit):
        if selection.wanted is not None and not selection.wanted(table, group):
            continue
        batch = table.batch(group, selection.columns)
        if batch is None:
            continue
        numbers = batch.column(0)
        first, stop = numbers[0].as_py(), numbers[-1].as_py() + 1
        low, high = max(first, cursor), min(stop, limit)
        if low >= high:
            continue
        if (low, high) != (first, stop):
            if stop - first == batch.num_rows:  # without a gap, so nothing need be copied
                batch = batch.slice(low - first, high - low)
            else:
                batch = batch.filter(pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high)))
        if batch.num_rows:
            yield _Piece(batch.column(0)[0].as_py(), batch.column(0)[-1].as_py() + 1, batch)


def _sealed_number_at(table: Table, column: str, time: int) -> int | None:
    for group in range(table.group_count):
        newest = table.latest(group, column)
        if newest is not None and newest < time:
            continue
        batch = table.batch(group, [table.column, column])
        if batch is None:
            continue
        row = pc.index(pc.greater_equal(batch.column(1).cast(pa.int64()), time), True).as_py()
        if row >= 0:
            number: int = batch.column(0)[row].as_py()
            return number
    return None


def _messages(view: SegmentView, cursor: int, limit: int, selection: _Selection) -> Iterator[Appended]:
    for record in view.records(offset=cursor, bodies=selection.bodies):
        if isinstance(record, Appended):
            if record.first >= limit:
                return
            start, stop = max(cursor - record.first, 0), min(limit - record.first, len(record))
            if start < stop:
                yield slice_appended(record, start, stop)
                cursor = record.first + stop
                if cursor == limit:
                    return  # without looking for an end further on


def _events(view: SegmentView, cursor: int, limit: int) -> Iterator[Events]:
    for record in view.records(position=cursor, bodies=False):
        if isinstance(record, Events):
            if record.first >= limit:
                return
            start, stop = max(cursor - record.first, 0), min(limit - record.first, len(record))
            if start < stop:
                yield Events(record.first + start, record.time, record.rows[start:stop])
                cursor = record.first + stop
                if cursor == limit:
                    return


def _groups(records: Iterable[Events]) -> Iterator[list[Events]]:
    """Neighbouring records, together at least a row group long, if there are enough."""
    group: list[Events] = []
    for record in records:
        adjoins = not group or group[-1].first + len(group[-1]) == record.first
        if group and (not adjoins or record.first - group[0].first >= GROUP_ROWS):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def neighbours(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts without gaps."""
    numbers = batch.column(0).to_pylist()
    start = 0
    for row in range(1, len(numbers) + 1):
        if row == len(numbers) or numbers[row] != numbers[row - 1] + 1:
            yield batch.slice(start, row - start)
            start = row


def _note_gap(gaps: dict[range, None], start: int, stop: int) -> None:
    if start < stop:
        gaps[range(start, stop)] = None


def _retry(look: Callable[[], T]) -> T:
    attempts = 0
    while True:
        try:
            return look()
        except FileNotFoundError as error:
            attempts = _again(attempts, error)


def _again(attempts: int, error: FileNotFoundError) -> int:
    """Files vanish when they are sealed or collected; a fresh listing knows where their rows are now."""
    if attempts == _ATTEMPTS:
        raise StorageError(f"files of the log vanish faster than they can be read ({error}); try again") from error
    return attempts + 1
