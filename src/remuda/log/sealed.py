"""Reading sealed files. A part that cannot be read is left out, never guessed."""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from remuda.log.disk import Disk
from remuda.log.fetch import Piece
from remuda.log.segments import SealedFile
from remuda.log.tables import to_messages
from remuda.model.errors import StorageError
from remuda.model.messages import Messages

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, UnicodeDecodeError)


class Unreadable(StorageError):
    """A sealed file is damaged."""


def open_parquet(disk: Disk, name: str) -> pq.ParquetFile:
    path = disk.path(name)
    try:
        # A map keeps the rows of an open file in place while collecting puts another in its stead.
        source = pa.BufferReader(disk.read(name)) if path is None else pa.memory_map(path)
        return pq.ParquetFile(source, page_checksum_verification=True)
    except UNREADABLE as error:
        _raise_unless_damage(error, name)
        raise Unreadable(f"{name} cannot be read ({error}); its rows are missing. Restore it from a copy") from error


def _raise_unless_damage(error: Exception, name: str) -> None:
    """A file that is gone or could not be opened is not damaged: its rows may well be there at the next try."""
    if isinstance(error, FileNotFoundError | pa.ArrowMemoryError):
        raise error
    if isinstance(error, OSError) and error.errno is not None and error.errno != errno.EIO:
        raise StorageError(f"{name} cannot be read now: {error.strerror}; try again") from error


class Table:
    """A sealed file, row group by row group. `column` is what its rows are ordered by."""

    def __init__(self, disk: Disk, file: SealedFile, column: str) -> None:
        self.file = file
        self.column = column
        self._parquet: pq.ParquetFile | None = None
        self._bounds: list[tuple[int, int]] = []
        try:
            self._parquet = open_parquet(disk, file.name)
            self._bounds = [self._bound(group) for group in range(self._parquet.metadata.num_row_groups)]
        except Unreadable:
            self._parquet = None
        except UNREADABLE as error:
            _raise_unless_damage(error, file.name)
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
                except (OverflowError, ValueError):  # a time beyond what Python can name
                    return None
        return None

    def latest(self, group: int, column: str) -> int | None:
        """The greatest time of a column in a row group, in microseconds, where it is known."""
        known = self.statistics(group, column)
        return None if known is None else (known[1] - _EPOCH) // timedelta(microseconds=1)

    def batch(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch | None:
        """The rows of a group; None when they cannot be read."""
        assert self._parquet is not None
        try:
            batches = self._parquet.read_row_group(group, columns=columns, use_threads=False).combine_chunks()
            return batches.to_batches()[0] if batches.num_rows else None
        except UNREADABLE as error:
            _raise_unless_damage(error, self.file.name)
            return None

    def _bound(self, group: int) -> tuple[int, int]:
        found = self.statistics(group, self.column)
        low, high = found if found is not None else (self.file.first, self.file.last)
        return max(low, self.file.first), min(high, self.file.last)


class MessageTable(Table):
    def __init__(self, disk: Disk, file: SealedFile) -> None:
        super().__init__(disk, file, "offset")

    def read(self, group: int) -> MessageRows:
        batch = self.batch(group)
        if batch is None:
            return MessageRows([], Messages(bodies=[], name=""))
        try:
            return MessageRows(batch.column("offset").to_pylist(), to_messages(batch))
        except UNREADABLE:
            return MessageRows([], Messages(bodies=[], name=""))


class EventTable(Table):
    def __init__(self, disk: Disk, file: SealedFile) -> None:
        super().__init__(disk, file, "position")


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
