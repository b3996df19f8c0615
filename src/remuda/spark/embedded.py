"""The log of an embedded directory, read while a broker writes, seals, shrinks and expires in it, or without one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from remuda.log import checkpoint as checkpoints
from remuda.log import ledger
from remuda.log.checkpoint import Mark
from remuda.log.directory import DirectoryDisk
from remuda.log.reader import Reader
from remuda.log.seal import GROUP_ROWS
from remuda.log.sealed import EventTable, MessageTable, Table
from remuda.log.segments import SealedFile
from remuda.log.view import Lister
from remuda.model.errors import StorageError
from remuda.spark.losses import Gap, subtracted
from remuda.spark.selection import Selection
from remuda.spark.tables import EVENTS, MESSAGES, MOMENT, SCHEMAS

_LAST: Final = 1 << 62
_SAMPLE: Final = 256
_MARKS: Final = {MESSAGES: ("created", "id"), EVENTS: ("time", "first", "state", "queue")}


class EmbeddedLog:
    """Implements `SparkLog` on a directory."""

    def __init__(self, path: str) -> None:
        self.disk = DirectoryDisk(path, create=False)
        self._reader = Reader(self.disk)

    def end(self, table: str) -> int:
        offset, position = self.cut()
        return offset if table == MESSAGES else position

    def cut(self) -> tuple[int, int]:
        """What lies before a checkpoint's mark was in the files when the checkpoint was written. If they end before it,
        their end was lost, and whoever reads up to the mark finds that out."""
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
        """Told by the first rows there are, as Spark gets them."""
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
        for file in self.sealed(EVENTS):
            try:
                table = self.open_sealed(file)
            except FileNotFoundError:
                continue  # collected: it told of nothing that is still there
            for group in range(table.group_count):
                first, count = table.bounds(group)
                firsts, counts = table.statistics(group, "first"), table.statistics(group, "count")
                about = range(firsts[0], firsts[1] + counts[1]) if firsts and counts else range(_LAST)
                if first < before:
                    told.append((range(first, min(first + count, before)), about))
            done = file.last + 1
        if done < before:
            told.append((range(done, before), range(_LAST)))
        # Whoever needs them is to find that they are missing.
        told += [(one, range(_LAST)) for one in clip(self.removed(EVENTS), 0, min(done, before))]
        return told

    def gaps(self, table: str, start: int, stop: int) -> list[Gap]:
        damaged: list[range] = []
        there: list[range] = []
        for file in self.sealed(table):
            if file.first < stop and file.last >= start:
                there += self._runs(file, start, stop, damaged)
        tail = self.sealed_before(table)
        gone = subtracted(range(start, min(stop, max(tail, start))), there)
        removed = clip(self.removed(table), start, stop) if gone else []
        let_go = [left for one in gone for left in subtracted(one, clip(removed, one.start, one.stop))]
        found = [Gap(one.start, one.stop, False) for one in let_go]
        found += [Gap(one.start, one.stop, True) for one in (*damaged, *removed)]
        return sorted(found, key=lambda gap: gap.start)

    def removed(self, table: str) -> list[range]:
        """Numbers of which no file says that it holds them, and that the collector has not let go: somebody else
        removed their files."""
        gone = self._unheld(table)
        if not gone:
            return []
        # A file that is written anew while the folder is listed may not be in the list: look again.
        twice = ledger.both(_spans(gone), _spans(self._unheld(table)))
        try:
            # Read after the files were listed: it says that one is collected before that goes away.
            collected = ledger.read(self.disk)
        except StorageError:
            collected = ledger.Ledger()  # nothing tells that they were collected
        if collected is None:
            return []  # nobody has taken note of it yet
        noted = collected.messages if table == MESSAGES else collected.events
        return [range(*span) for span in ledger.without(twice, noted)]

    def _unheld(self, table: str) -> list[range]:
        """The numbers before the tail that no sealed file is named after."""
        return subtracted(
            range(self.sealed_before(table)), [range(file.first, file.last + 1) for file in self.sealed(table)]
        )

    def _runs(self, file: SealedFile, start: int, stop: int, damaged: list[range]) -> Iterator[range]:
        """Neighbouring numbers that a file holds. Those that are found to be damaged were not let go either."""
        whole = range(max(file.first, start), min(file.last + 1, stop))
        if not whole:
            return
        try:
            table = self.open_sealed(file)
        except FileNotFoundError:
            return
        if not table.readable:
            damaged.append(whole)
        if not table.readable or table.rows == file.last - file.first + 1:
            yield whole
            return
        for group in table.groups(start, stop):
            first, count = table.bounds(group)
            if table.group_rows(group) == count:
                yield range(max(first, start), min(first + count, stop))
                continue
            batch = table.batch(group, [table.column])
            if batch is None:
                damaged.append(range(max(first, start), min(first + count, stop)))
                yield damaged[-1]
                continue
            numbers = batch.column(0).to_numpy()
            yield from _runs_of(pa.array(numbers[(numbers >= start) & (numbers < stop)]))

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
            covered += _runs_of(batch.column(0))
            chosen = selection.apply(table, batch)
            if chosen.num_rows:
                yield _completed(chosen, table, columns)
        if missing is not None:
            for one in subtracted(range(start, stop), sorted(covered, key=lambda run: run.start)):
                missing += self._causes(table, one)

    def _causes(self, table: str, missing: range) -> Iterator[Gap]:
        """What was not read, parted by why: what was not let go is damaged."""
        let_go = [
            range(gap.start, gap.stop) for gap in self.gaps(table, missing.start, missing.stop) if not gap.damaged
        ]
        yield from (Gap(one.start, one.stop, False) for one in let_go)
        yield from (Gap(one.start, one.stop, True) for one in subtracted(missing, let_go))

    def sealed(self, table: str) -> tuple[SealedFile, ...]:
        """The files that are sealed by now."""
        listing = Lister(self.disk).list()
        return listing.messages if table == MESSAGES else listing.events

    def sealed_before(self, table: str) -> int:
        """The first number that is not in a sealed file, or in one that was collected since."""
        tail = Lister(self.disk).list().tail
        if not tail:
            return self.end(table)
        return min(view.first.offset if table == MESSAGES else view.first.position for view in tail)

    def open_sealed(self, file: SealedFile) -> Table:
        return (MessageTable if file.table == MESSAGES else EventTable)(self.disk, file)

    def _edges(self, table: str) -> list[int]:
        """Where files begin, in order."""
        listing = Lister(self.disk).list()
        if table == MESSAGES:
            return sorted([file.first for file in listing.messages] + [view.first.offset for view in listing.tail])
        return sorted([file.first for file in listing.events] + [view.first.position for view in listing.tail])


def _reached(mark: Mark | None) -> tuple[int, int]:
    return (0, 0) if mark is None else (mark.next_offset, mark.next_position)


def _spans(ranges: Sequence[range]) -> list[ledger.Span]:
    return [(one.start, one.stop) for one in ranges]


def _runs_of(column: pa.Array) -> list[range]:
    """Neighbouring numbers of a column in order, as ranges."""
    if not len(column):
        return []
    first, last = column[0].as_py(), column[-1].as_py()
    if last - first + 1 == len(column):
        return [range(first, last + 1)]
    numbers = column.to_numpy()
    edges = np.flatnonzero(np.diff(numbers) > 1)
    begins, ends = np.append(0, edges + 1), np.append(edges, len(numbers) - 1)
    return [range(int(numbers[at]), int(numbers[to]) + 1) for at, to in zip(begins, ends, strict=True)]


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
