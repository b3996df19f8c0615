"""Reading sealed files. A part that cannot be read is left out, never guessed."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from remuda.log.disk import Disk
from remuda.log.readers.fetch import Piece
from remuda.log.sealed.arrow import pa, pc
from remuda.log.sealed.arrow_records import to_messages
from remuda.log.sealed.parquet import SealedParquet, Unreadable
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA, conform
from remuda.log.segments import MESSAGES_TABLE, SealedFile
from remuda.model.messages import Messages

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPEN: Final = 16


class Table:
    """A sealed file, row group by row group. `column` is what its rows are ordered by."""

    def __init__(self, disk: Disk, file: SealedFile, column: str, schema: pa.Schema) -> None:
        self.file = file
        self.column = column
        self.schema = schema
        self._parquet: SealedParquet | None = None
        self.sealed_as: str | None = None
        """The name it was sealed under, if that is another."""
        self._bounds: list[tuple[int, int]] = []
        try:
            self._parquet = SealedParquet(disk, file.name)
        except Unreadable:
            pass
        else:
            self._bounds = [self._bound(group) for group in range(self._parquet.metadata.num_row_groups)]
            if not self._is_own():
                self._parquet, self._bounds = None, []
        self.bytes = 4096 + 4096 * len(self._bounds)

    @property
    def readable(self) -> bool:
        return self._parquet is not None

    @property
    def rows(self) -> int:
        count: int = self._parquet.metadata.num_rows if self._parquet is not None else 0
        return count

    @property
    def group_count(self) -> int:
        return len(self._bounds)

    def bounds(self, group: int) -> tuple[int, int]:
        """The run `(first, count)` that a row group covers."""
        low, high = self._bounds[group]
        return low, high - low + 1

    def group_rows(self, group: int) -> int:
        """How many rows a row group has."""
        assert self._parquet is not None
        count: int = self._parquet.metadata.row_group(group).num_rows
        return count

    def groups(self, start: int, stop: int) -> list[int]:
        """The row groups that may hold numbers from `start` to before `stop`."""
        return [group for group, (low, high) in enumerate(self._bounds) if low < stop and high >= start]

    def statistics(self, group: int, column: str) -> tuple[Any, Any] | None:
        """The least and the greatest value of a column in a row group, where they are known."""
        assert self._parquet is not None
        meta = self._parquet.metadata.row_group(group)
        for at in range(meta.num_columns):
            chunk = meta.column(at)
            if chunk.path_in_schema == column:
                known = chunk.statistics
                try:
                    return (known.min, known.max) if known is not None and known.has_min_max else None
                except (OverflowError, ValueError):  # a time beyond Python's range
                    return None
        return None

    def latest(self, group: int, column: str) -> int | None:
        """The greatest time of a column in a row group, in microseconds, where it is known."""
        known = self.statistics(group, column)
        return None if known is None else (known[1] - _EPOCH) // timedelta(microseconds=1)

    def batch(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch | None:
        """The rows of a group; None when they cannot be read."""
        try:
            return self.read(group, columns)
        except Unreadable:
            return None

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of a group; raises `Unreadable`."""
        assert self._parquet is not None
        return conform(self._parquet.read(group, columns), self.schema, columns)

    def held(self, start: int, stop: int, damaged: list[range]) -> Iterator[range]:
        """Neighbouring numbers that this file holds, in order. Rows that cannot be read count too, since they were not
        collected; their numbers are added to `damaged`."""
        whole = range(max(self.file.first, start), min(self.file.last + 1, stop))
        if not whole:
            return
        if not self.readable:
            damaged.append(whole)
        if not self.readable or self.rows == self.file.last - self.file.first + 1:
            yield whole
            return
        for group in self.groups(start, stop):
            first, count = self.bounds(group)
            here = range(max(first, start), min(first + count, stop))
            batch = None if self.group_rows(group) == count else self.batch(group, [self.column])
            if batch is not None:
                runs = (range(max(run.start, start), min(run.stop, stop)) for run in runs_of(batch.column(0)))
                yield from (run for run in runs if run)
                continue
            if self.group_rows(group) != count:
                damaged.append(here)
            yield here

    def _is_own(self) -> bool:
        """Whether this is the file that its name says, and not another that was put in its place."""
        assert self._parquet is not None
        own = self._parquet.sealed_as
        if own is not None and own != self.file.name.rpartition("/")[2]:
            self.sealed_as = own
        names = self._parquet.metadata.schema.to_arrow_schema().names
        return self.column in names and all(
            self.file.first <= low <= high <= self.file.last for low, high in self._bounds
        )

    def _bound(self, group: int) -> tuple[int, int]:
        known = self.statistics(group, self.column)
        return known if known is not None else (self.file.first, self.file.last)


class MessageTable(Table):
    def __init__(self, disk: Disk, file: SealedFile) -> None:
        super().__init__(disk, file, "offset", MESSAGES_SCHEMA)

    def messages(self, group: int) -> MessageRows:
        batch = self.batch(group)
        if batch is None:
            return MessageRows([], Messages(bodies=[], name=""))
        return MessageRows(batch.column("offset").to_pylist(), to_messages(batch))


class EventTable(Table):
    def __init__(self, disk: Disk, file: SealedFile) -> None:
        super().__init__(disk, file, "position", EVENTS_SCHEMA)

    def concerns(self, group: int) -> range:
        """The offsets of the messages that a row group's events may be about."""
        firsts, counts = self.statistics(group, "first"), self.statistics(group, "count")
        if firsts is None or counts is None:
            return range(1 << 62)
        return range(firsts[0], firsts[1] + counts[1])


class Tables:
    """Sealed files that were opened lately, so that their footers are not read again for each row."""

    def __init__(self, disk: Disk, limit: int = _OPEN) -> None:
        self._disk = disk
        self._limit = limit
        self._known: dict[str, tuple[tuple[int, ...], Any]] = {}

    def messages(self, file: SealedFile) -> MessageTable:
        found: MessageTable = self._table(MessageTable, file)
        return found

    def events(self, file: SealedFile) -> EventTable:
        found: EventTable = self._table(EventTable, file)
        return found

    def keep(self, files: Iterable[SealedFile]) -> None:
        """Close those that are not listed any more: an open file still takes room on the disk."""
        for name in self._known.keys() - {file.name for file in files}:
            self._known.pop(name, None)

    def table(self, file: SealedFile) -> Table:
        return self.messages(file) if file.table == MESSAGES_TABLE else self.events(file)

    def _table(self, kind: Callable[[Disk, SealedFile], Any], file: SealedFile) -> Any:
        state = file_state(self._disk, file.name)
        if state is None:
            return kind(self._disk, file)
        known = self._known.pop(file.name, None)
        table = known[1] if known is not None and known[0] == state else kind(self._disk, file)
        if table.readable:  # a damaged file may be restored
            self._known[file.name] = (state, table)
        while len(self._known) > self._limit:
            self._known.pop(next(iter(self._known), ""), None)
        return table


def file_state(disk: Disk, name: str) -> tuple[int, ...] | None:
    """What changes when collecting rewrites a file under the same name; None where the disk cannot say."""
    path = disk.path(name)
    if path is None:
        return None
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def runs_of(numbers: pa.Array) -> list[range]:
    """Neighbouring numbers of a column in order, as ranges."""
    if not len(numbers):
        return []
    first, last = numbers[0].as_py(), numbers[-1].as_py()
    if last - first + 1 == len(numbers):
        return [range(first, last + 1)]
    ends, starts = numbers.slice(0, len(numbers) - 1), numbers.slice(1)
    apart = pc.greater(pc.subtract(starts, ends), 1)
    begins = [first, *starts.filter(apart).to_pylist()]
    return [range(one, end + 1) for one, end in zip(begins, [*ends.filter(apart).to_pylist(), last], strict=True)]


class MessageRows:
    """Messages of a row group at ascending offsets, some of which may be gone."""

    def __init__(self, offsets: list[int], messages: Messages) -> None:
        self._messages = messages
        self._offsets: Sequence[int] = offsets
        if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
            self._offsets = range(offsets[0], offsets[-1] + 1)
        self.bytes = sum(map(len, messages.bodies)) + 200 * len(offsets)

    def pieces(self, offset: int, stop: int) -> Iterator[Piece]:
        offsets = self._offsets
        row = bisect_left(offsets, offset)
        last = bisect_left(offsets, stop)
        while row < last:
            end = row + 1
            if isinstance(offsets, range):
                end = last
            else:
                while end < last and offsets[end] == offsets[end - 1] + 1:
                    end += 1
            yield Piece(offsets[row], self._messages.slice(row, end))
            row = end
