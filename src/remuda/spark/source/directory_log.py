"""The log of an embedded directory, read while a broker writes, seals, shrinks and expires in it, or without one."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.readers.reader import Reader
from remuda.log.readers.segment_view import Listing
from remuda.log.sealed.seal import GROUP_ROWS
from remuda.log.sealed.sealed_table import Table, file_state, runs_of
from remuda.log.segments import SealedFile
from remuda.log.state import checkpoint as checkpoints
from remuda.log.state import ledger
from remuda.log.state.checkpoint import Mark
from remuda.model.errors import StorageError
from remuda.spark.source.losses import Gap, subtracted
from remuda.spark.source.selection import Selection
from remuda.spark.source.tables import EVENTS, MESSAGES, MOMENT, SCHEMAS

_LAST: Final = 1 << 62
_SAMPLE: Final = 256
_MARKS: Final = {MESSAGES: ("created", "id"), EVENTS: ("time", "first", "state", "queue")}


class EmbeddedLog:
    """Implements `SparkLog` on a directory."""

    def __init__(self, path: str) -> None:
        self.disk = DirectoryDisk.of_log(path)
        self._reader = Reader(self.disk)
        self._told: dict[str, tuple[tuple[int, ...], list[tuple[range, range]]]] = {}

    @property
    def identity(self) -> str:
        return self.disk.identity

    def reaches(self, table: str, number: int) -> bool:
        sealed = self.sealed(table)
        return bool(sealed and sealed[-1].last + 1 >= number) or self.end(table) >= number

    def end(self, table: str) -> int:
        offset, position = self.cut()
        return offset if table == MESSAGES else position

    def cut(self) -> tuple[int, int]:
        """What lies before a checkpoint's mark was in the files when the checkpoint was written. If they end before it,
        their end was lost, and whoever reads up to the mark finds that out."""
        self.disk.check_log()
        # The mark first: a broker may write on between the two looks.
        marked = _reached(checkpoints.newest_mark(self.disk))
        offset, position = self._reader.end()
        if marked[0] > offset or marked[1] > position:
            sound = checkpoints.read_all(self.disk).valid
            marked = _reached(sound[0].mark if sound else None)
        return max(offset, marked[0]), max(position, marked[1])

    def mark(self, table: str, number: int) -> str | None:
        columns = _MARKS[table]
        for batch in self.batches(table, number - 1, number, Selection(), columns) if number else ():
            row = batch.slice(batch.num_rows - 1)
            return " ".join(str(_plain(row.column(name))) for name in columns)
        return None

    def number_at(self, table: str, time: int) -> int:
        return self._reader.offset_at(time) if table == MESSAGES else self._reader.position_at(time)

    def newest(self, table: str) -> int | None:
        end = self.end(table)
        for batch in self.batches(table, end - 1, end, Selection(), (MOMENT[table],)) if end else ():
            time: int = batch.column(0).cast(pa.int64())[-1].as_py()
            return time
        return None

    def rows(self, table: str, start: int, stop: int) -> int:
        return max(stop - start, 0)

    def after(self, table: str, start: int, rows: int) -> int:
        return min(start + rows, self.end(table))

    def row_bytes(self, table: str, start: int) -> float:
        """Estimated from the first rows there are, as Spark gets them."""
        for batch in self.batches(table, start, start + _SAMPLE, Selection(), SCHEMAS[table].names):
            size: int = batch.nbytes
            return max(size / int(batch.num_rows), 1.0)
        return 1.0

    def parts(self, table: str, start: int, stop: int, rows: int) -> list[range]:
        count = max(-(-(stop - start) // rows), 1)
        cuts = [start + (stop - start) * one // count for one in range(1, count)]
        if rows >= 2 * GROUP_ROWS:
            # A row group that is cut apart is read by both neighbours.
            firsts = self._edges(table)
            cuts = [group_start(firsts, cut) for cut in cuts]
        edges = sorted({start, stop, *(cut for cut in cuts if start < cut < stop)})
        return [range(*pair) for pair in pairwise(edges)]

    def telling(self, before: int) -> list[tuple[range, range]]:
        told: list[tuple[range, range]] = []
        done = 0
        files = self.sealed(EVENTS)
        for file in files:
            try:
                pieces = self._about(file)
            except FileNotFoundError:
                continue  # collected: none of its messages is still there
            told += [(range(one.start, min(one.stop, before)), about) for one, about in pieces if one.start < before]
            done = file.last + 1
        for name in self._told.keys() - {file.name for file in files}:
            del self._told[name]
        if done < before:
            told.append((range(done, before), range(_LAST)))
        # A task that needs these must find that they are missing.
        told += [(one, range(_LAST)) for one in clip(self.removed(EVENTS), 0, min(done, before))]
        return told

    def _about(self, file: SealedFile) -> list[tuple[range, range]]:
        """The positions of each row group, and the offsets that its events may concern: kept, since planning asks for
        them at every micro-batch, and there may be ten thousand files."""
        state = file_state(self.disk, file.name) or ()
        known = self._told.get(file.name)
        if known is not None and known[0] == state:
            return known[1]
        table = self._reader.tables.events(file)
        found = []
        for group in range(table.group_count):
            first, count = table.bounds(group)
            found.append((range(first, first + count), table.concerns(group)))
        if table.readable:  # a damaged file may be restored
            self._told[file.name] = state, found
        return found

    def gaps(self, table: str, start: int, stop: int) -> list[Gap]:
        damaged: list[range] = []
        there: list[range] = []
        # One look at the files: what is sealed between two of them would be in neither.
        listing = self._reader.listed()
        for file in _sealed(listing, table):
            if file.first < stop and file.last >= start:
                with contextlib.suppress(FileNotFoundError):
                    there += self.open_sealed(file).held(start, stop, damaged)
        tail = self._sealed_before(listing, table)
        gone = subtracted(range(start, min(stop, max(tail, start))), there)
        removed = clip(self.removed(table), start, stop) if gone else []
        let_go = [left for one in gone for left in subtracted(one, clip(removed, one.start, one.stop))]
        found = [Gap(one.start, one.stop, False) for one in let_go]
        found += [Gap(one.start, one.stop, True) for one in (*damaged, *removed)]
        return sorted(found, key=lambda gap: gap.start)

    def removed(self, table: str) -> list[range]:
        """Numbers that no file covers and that the collector has not removed: something else removed their files."""
        gone = self._unheld(table)
        if not gone:
            return []
        # A file that is rewritten while the folder is listed may not be in the list: look again.
        twice = ledger.both(_spans(gone), _spans(self._unheld(table)))
        try:
            # Read after the files were listed: it notes that a file is collected before the file is removed.
            collected = ledger.read(self.disk)
        except StorageError:
            collected = ledger.Ledger()  # nothing shows that they were collected
        if collected is None:
            return []  # the log has no ledger yet
        noted = collected.messages if table == MESSAGES else collected.events
        return [range(*span) for span in ledger.without(twice, noted)]

    def _unheld(self, table: str) -> list[range]:
        """The numbers before the tail that no sealed file is named after."""
        listing = self._reader.listed()
        named = [range(file.first, file.last + 1) for file in _sealed(listing, table)]
        return subtracted(range(self._sealed_before(listing, table)), named)

    def batches(
        self,
        table: str,
        start: int,
        stop: int,
        selection: Selection,
        columns: Sequence[str],
        missing: list[Gap] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        read = self._reader.message_batches if table == MESSAGES else self._reader.event_batches
        needed = [name for name in SCHEMAS[table].names if name in selection.columns(table) or name in columns]
        covered: list[range] = []

        def wanted(sealed: Table, group: int) -> bool:
            if selection.may_hold(table, sealed, group):
                return True
            first, count = sealed.bounds(group)
            covered.append(range(first, first + count))
            return False

        for batch in read(start, stop, columns=needed, wanted=wanted):
            covered += runs_of(batch.column(0))
            chosen = selection.apply(table, batch)
            if chosen.num_rows:
                yield _completed(chosen, table, columns)
        if missing is not None:
            for one in subtracted(range(start, stop), sorted(covered, key=lambda run: run.start)):
                missing += self.causes(table, one)

    def causes(self, table: str, missing: range) -> Iterator[Gap]:
        """What was not read, split by the cause: what was not collected is damaged."""
        let_go = [
            range(gap.start, gap.stop) for gap in self.gaps(table, missing.start, missing.stop) if not gap.damaged
        ]
        yield from (Gap(one.start, one.stop, False) for one in let_go)
        yield from (Gap(one.start, one.stop, True) for one in subtracted(missing, let_go))

    def sealed(self, table: str) -> tuple[SealedFile, ...]:
        """The files that are sealed by now."""
        return _sealed(self._reader.listed(), table)

    def open_sealed(self, file: SealedFile) -> Table:
        return self._reader.tables.table(file)

    def _sealed_before(self, listing: Listing, table: str) -> int:
        """The first number that is not in a sealed file, or in one that was collected since."""
        starts = _tail_starts(listing, table)
        return min(starts) if starts else self.end(table)

    def _edges(self, table: str) -> list[int]:
        """Where files begin, in order."""
        listing = self._reader.listed()
        return sorted([*(file.first for file in _sealed(listing, table)), *_tail_starts(listing, table)])


def _sealed(listing: Listing, table: str) -> tuple[SealedFile, ...]:
    return listing.messages if table == MESSAGES else listing.events


def _tail_starts(listing: Listing, table: str) -> list[int]:
    return [view.first.offset if table == MESSAGES else view.first.position for view in listing.tail]


def _reached(mark: Mark | None) -> tuple[int, int]:
    return (0, 0) if mark is None else (mark.next_offset, mark.next_position)


def _spans(ranges: Sequence[range]) -> list[ledger.Span]:
    return [(one.start, one.stop) for one in ranges]


def _plain(column: pa.Array) -> object:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)[0].as_py()


def _completed(batch: pa.RecordBatch, table: str, columns: Sequence[str]) -> pa.RecordBatch:
    """These columns; null where a file was sealed before there was such a column."""
    fields = [SCHEMAS[table].field(name) for name in columns]
    known = set(batch.schema.names)
    if known.issuperset(columns):
        return batch.select(list(columns))
    arrays = [
        batch.column(field.name) if field.name in known else pa.nulls(batch.num_rows, field.type) for field in fields
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def group_start(firsts: Sequence[int], number: int) -> int:
    """Where the nearest row group begins, in files that begin with these numbers."""
    first = firsts[max(bisect_right(firsts, number) - 1, 0)] if firsts else 0
    return first + round((number - first) / GROUP_ROWS) * GROUP_ROWS


def clip(ranges: Sequence[range], start: int, stop: int) -> list[range]:
    """Of ranges in order, what lies from `start` to before `stop`."""
    at = max(bisect_left([one.start for one in ranges], start) - 1, 0)
    clipped = (range(max(one.start, start), min(one.stop, stop)) for one in ranges[at:] if one.start < stop)
    return [one for one in clipped if one]
