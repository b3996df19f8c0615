"""The rows of a log by number, piece by piece: first from sealed files, then from the tail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from remuda.log.readers.segment_view import Listing, SegmentView
from remuda.log.sealed.arrow import pa, pc
from remuda.log.sealed.seal import GROUP_BYTES, GROUP_ROWS
from remuda.log.sealed.sealed_table import Table, Tables
from remuda.log.segments import EVENTS_TABLE, MESSAGES_TABLE, Counters, SealedFile
from remuda.log.tail.regroup import offset_since, regroup, slice_appended
from remuda.model.records import Appended, Events

Wanted: TypeAlias = Callable[[Table, int], bool]
"""Whether a row group of a sealed file can hold a row that is looked for."""


class Piece(NamedTuple):
    """Rows from number `first` to before `stop`: sealed ones as a batch, those of the tail as records."""

    first: int
    stop: int
    rows: Any


class Selection(NamedTuple):
    """Which columns and row groups to read; the others may be skipped."""

    columns: Sequence[str] | None = None
    wanted: Wanted | None = None

    @property
    def bodies(self) -> bool:
        return self.columns is None or "body" in self.columns


class Rows(NamedTuple):
    """One of the two tables of a log: how its rows are numbered, and how they stand in the tail."""

    table: str
    number: Callable[[Counters], int]
    """Of the counters at a place, the one that numbers these rows."""
    time: str
    """The column that says when a row was made."""
    in_tail: Callable[[SegmentView, int, int, Selection], Iterator[Piece]]
    since: Callable[[Any, int], int | None]
    """The number of a record's first row that was made at a time or later; None if the record holds none."""

    def sealed(self, listing: Listing) -> tuple[SealedFile, ...]:
        return listing.messages if self.table == MESSAGES_TABLE else listing.events

    def end(self, listing: Listing) -> int:
        """The number after the sealed files."""
        return max((file.last + 1 for file in self.sealed(listing)), default=0)

    def pieces(self, listing: Listing, tables: Tables, start: int, limit: int, selection: Selection) -> Iterator[Piece]:
        """What there is from number `start` to before `limit`, in order."""
        for source in self._in_order(listing):
            if isinstance(source, SealedFile):
                if source.last < start or source.first >= limit:
                    continue
                found = sealed_pieces(tables.table(source), start, limit, selection)
            elif (following := _following(listing, source)) is None or self.number(following.first) > start:
                found = self.in_tail(source, start, limit, selection)
            else:
                continue
            for piece in found:
                start = piece.stop
                yield piece
            if start >= limit:
                return

    def number_at(self, listing: Listing, tables: Tables, time: int) -> int | None:
        """The first number of a row that was made at `time` or later; None if there is none."""
        for source in self._in_order(listing):
            if isinstance(source, SealedFile):
                found = _sealed_number_at(tables.table(source), self.time, time)
                if found is not None:
                    return found
                continue
            for record in source.records(bodies=False):
                if (number := self.since(record, time)) is not None:
                    return number
        return None

    def _in_order(self, listing: Listing) -> list[SealedFile | SegmentView]:
        """All files by the number they begin with; a segment that is being sealed stands behind its sealed file."""
        sources: list[tuple[int, int, SealedFile | SegmentView]] = [
            *((file.first, 0, file) for file in self.sealed(listing)),
            *((self.number(view.first), 1, view) for view in listing.tail),
        ]
        return [source for _, _, source in sorted(sources, key=lambda entry: entry[:2])]


def _following(listing: Listing, view: SegmentView) -> SegmentView | None:
    at = listing.tail.index(view) + 1
    return listing.tail[at] if at < len(listing.tail) else None


def sealed_pieces(table: Table, start: int, limit: int, selection: Selection) -> Iterator[Piece]:
    for group in table.groups(start, limit):
        if selection.wanted is not None and not selection.wanted(table, group):
            continue
        batch = table.batch(group, selection.columns)
        if batch is None:
            continue
        numbers = batch.column(0)
        first, stop = numbers[0].as_py(), numbers[-1].as_py() + 1
        low, high = max(first, start), min(stop, limit)
        if low >= high:
            continue
        if (low, high) != (first, stop):
            if stop - first == batch.num_rows:  # without a gap, so nothing need be copied
                batch = batch.slice(low - first, high - low)
            else:
                batch = batch.filter(pc.and_(pc.greater_equal(numbers, low), pc.less(numbers, high)))
        if batch.num_rows:
            yield Piece(batch.column(0)[0].as_py(), batch.column(0)[-1].as_py() + 1, batch)


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


def _messages_in_tail(view: SegmentView, start: int, limit: int, selection: Selection) -> Iterator[Piece]:
    for record in regroup(_messages(view, start, limit, selection), GROUP_ROWS, GROUP_BYTES):
        yield Piece(record.first, record.first + len(record), record)


def _messages(view: SegmentView, start: int, limit: int, selection: Selection) -> Iterator[Appended]:
    for record in view.records(offset=start, bodies=selection.bodies):
        if isinstance(record, Appended):
            if record.first >= limit:
                return
            low, high = max(start - record.first, 0), min(limit - record.first, len(record))
            if low < high:
                yield slice_appended(record, low, high)
                start = record.first + high
                if start == limit:
                    return  # without looking for an end further on


def _events_in_tail(view: SegmentView, start: int, limit: int, _: Selection) -> Iterator[Piece]:
    for records in _groups(_events(view, start, limit)):
        yield Piece(records[0].first, records[-1].first + len(records[-1]), records)


def _events(view: SegmentView, start: int, limit: int) -> Iterator[Events]:
    for record in view.records(position=start, bodies=False):
        if isinstance(record, Events):
            if record.first >= limit:
                return
            low, high = max(start - record.first, 0), min(limit - record.first, len(record))
            if low < high:
                yield Events(record.first + low, record.time, record.rows[low:high])
                start = record.first + high
                if start == limit:
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


def _event_since(record: Any, time: int) -> int | None:
    return record.first if isinstance(record, Events) and record.time >= time else None


def _message_since(record: Any, time: int) -> int | None:
    return offset_since(record, time) if isinstance(record, Appended) else None


MESSAGES: Final = Rows(MESSAGES_TABLE, lambda counters: counters.offset, "created", _messages_in_tail, _message_since)
EVENTS: Final = Rows(EVENTS_TABLE, lambda counters: counters.position, "time", _events_in_tail, _event_since)
