"""Spectators: reading a log from any offset or time, beside its writer or without one, changing nothing (L8)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from remuda.log.disk import Disk
from remuda.log.eventlog import Columns, Ends, EventLog
from remuda.log.readers.finder import Finder
from remuda.log.readers.pieces import EVENTS, MESSAGES, Rows, Selection, Wanted
from remuda.log.readers.segment_view import Lister, Listing
from remuda.log.retrying import look_again, read_on
from remuda.log.sealed.arrow import pa
from remuda.log.sealed.arrow_records import event_batch, message_batch, to_appended, to_events
from remuda.log.sealed.sealed_table import Tables, runs_of
from remuda.log.segments import Counters, Files, TailSegment
from remuda.log.state import ledger as ledgers
from remuda.log.state.ledger import Ledger
from remuda.model.errors import StorageError
from remuda.model.message import Message
from remuda.model.records import Appended, Event, Events, QueueChange

_NO_END: Final = 1 << 62
_EVERYTHING: Final = Selection()


class Reader(EventLog):
    """The event log on a disk. Each call reads what is there now; call again from its end for what came since."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk
        self._lister = Lister(disk)
        self._finder = Finder(disk, self._files)
        self.tables = Tables(disk)
        """Those of the files that were listed last."""

    def message_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        for rows in self._read(MESSAGES, start, stop, Selection(columns, wanted)):
            yield message_batch(rows, columns) if isinstance(rows, Appended) else rows

    def event_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        for rows in self._read(EVENTS, start, stop, Selection(columns, wanted)):
            yield event_batch(rows, columns) if isinstance(rows, list) else rows

    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[Appended]:
        for rows in self._read(MESSAGES, start, stop):
            if isinstance(rows, Appended):
                yield rows
            else:
                yield from map(to_appended, neighbours(rows))

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Events]:
        for rows in self._read(EVENTS, start, stop):
            yield from rows if isinstance(rows, list) else to_events(rows)

    def end(self) -> tuple[int, int]:
        """The offset and the position that come next."""
        return look_again(self._end)

    def ends(self) -> Ends:
        return look_again(self._ends)

    def offset_of(self, id: str) -> int | None:
        return self._finder.offset_of(id)

    def message(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        return self._finder.message(offset)

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        return self._finder.events_of(offset)

    def changes(self, queue: str | None = None) -> list[QueueChange]:
        return [change for change in look_again(self._lister.changes) if queue is None or change.queue == queue]

    def offset_at(self, time: int) -> int:
        return self._number_at(MESSAGES, time)

    def position_at(self, time: int) -> int:
        return self._number_at(EVENTS, time)

    def _read(self, kind: Rows, start: int, stop: int | None, selection: Selection = _EVERYTHING) -> Iterator[Any]:
        gaps = self._gaps if kind is MESSAGES else self._event_gaps
        if selection.wanted is not None:
            gaps = {}  # what is not wanted is not missing
        cursor, limit = start, _NO_END if stop is None else stop

        def rest() -> Iterator[Any]:
            nonlocal cursor
            for first, following, rows in kind.pieces(self.listed(), self.tables, cursor, limit, selection):
                _note_gap(gaps, cursor, first)
                if isinstance(rows, pa.RecordBatch) and following - first != rows.num_rows:
                    for before, after in pairwise(runs_of(rows.column(0))):
                        _note_gap(gaps, before.stop, after.start)
                cursor = following
                yield rows

        return read_on(rest)

    def _number_at(self, kind: Rows, time: int) -> int:
        def look() -> int:
            found = kind.number_at(self.listed(), self.tables, time)
            return self._end()[kind is EVENTS] if found is None else found

        return look_again(look)

    def listed(self) -> Listing:
        """The files there are now."""
        listing = self._lister.list()
        self.tables.keep((*listing.messages, *listing.events))
        return listing

    def _end(self) -> tuple[int, int]:
        listing = self.listed()
        offset, position = MESSAGES.end(listing), EVENTS.end(listing)
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


def neighbours(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts without gaps."""
    row = 0
    for run in runs_of(batch.column(0)):
        yield batch.slice(row, len(run))
        row += len(run)


def _note_gap(gaps: dict[range, None], start: int, stop: int) -> None:
    if start < stop:
        gaps[range(start, stop)] = None
