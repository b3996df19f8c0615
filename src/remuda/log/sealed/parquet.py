"""Parquet files in which no damage goes unnoticed.

Parquet has checksums for its pages at best, not for its metadata. Before the footer, where no reader looks, is a seal:
the checksum of every row group and of the footer. Any Parquet reader can read the files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterable, Sequence
from typing import Any, Final

import google_crc32c
import pyarrow.parquet as pq

from remuda.log.disk import AppendFile, Disk
from remuda.log.sealed.arrow import pa, pc
from remuda.log.sealed.checksums import NAME_KEY, PAGES_KEY, Group, encode_seal, read_seal
from remuda.log.sealed.table_schemas import with_ids, without_ids
from remuda.model.errors import RemudaError, StorageError

TEMPORARY: Final = ".tmp"
_LOW_CARDINALITY: Final = {
    "messages": ["name", "topics.list.element", "object", "mime_type", "queues.list.element"],
    "events": ["queue", "state", "consumer", "reason", "who"],
}
_LISTED: Final = ["queues.list.element"]
"""List columns with statistics, so that a search for one value can skip row groups."""
UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


class Unreadable(StorageError):
    """A sealed file, or a row group of it, is damaged."""


def write_sealed(
    disk: Disk, name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str
) -> tuple[int, int]:
    """Write a sealed file with one row group for each batch, all of it or nothing; its rows and its bytes."""
    temporary = f"{name}{TEMPORARY}"
    file = disk.open_append(temporary)
    try:
        try:
            sealed_as = with_ids(schema).with_metadata(
                {NAME_KEY: name.rpartition("/")[2].encode(), PAGES_KEY: b"crc32"}
            )
            rows, size = _write(file, batches, sealed_as, table)
            file.sync()
        finally:
            file.close()
        disk.rename(temporary, name)
    except RemudaError:
        with contextlib.suppress(RemudaError):
            disk.remove(temporary)
        raise
    return rows, size


def _write(file: AppendFile, batches: Iterable[pa.RecordBatch], schema: pa.Schema, table: str) -> tuple[int, int]:
    sink = _Sink(file)
    groups: list[Group] = []
    rows = 0
    with pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression="zstd",
        compression_level=1,
        write_page_checksum=True,  # for readers that do not know the seal
        use_dictionary=_LOW_CARDINALITY[table],
        write_statistics=[name for name in schema.names if name not in ("body", "wire")] + _LISTED,
    ) as writer:
        sink.pass_on()
        for batch in batches:
            start = sink.position
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=max(batch.num_rows, 1))
            groups.append(Group(start, sink.position + sink.held, sink.pass_on()))
            rows += batch.num_rows
    footer = sink.take_held()
    seal = encode_seal(groups, footer)
    file.write(seal + footer)
    return rows, sink.position + len(seal) + len(footer)


class _Sink:
    """Takes what Arrow writes and passes it on group by group, so that a file is never whole in memory."""

    closed = False

    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self._held: list[bytes] = []
        self.held = 0
        self.position = 0

    def write(self, data: bytes) -> int:
        self._held.append(bytes(data))
        self.held += len(data)
        return len(data)

    def pass_on(self) -> int:
        """Write what is held to the file; its checksum."""
        data = self.take_held()
        self._file.write(data)
        self.position += len(data)
        crc: int = google_crc32c.value(data)
        return crc

    def take_held(self) -> bytes:
        """What was written last and not passed on."""
        data = b"".join(self._held)
        self._held.clear()
        self.held = 0
        return data

    def tell(self) -> int:
        return self.position + self.held

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class SealedParquet:
    """A sealed file opened for reading. Raises `Unreadable` rather than give a wrong row."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._name = name
        path = disk.path(name)
        try:
            if path is not None and not stat.S_ISREG(os.lstat(path).st_mode):
                raise ValueError("it is not a plain file")  # to open a pipe would wait for its other end
            # An open file keeps its rows while collecting replaces it. It is not memory-mapped: there a failing disk
            # would kill the process.
            self._source = pa.BufferReader(disk.read(name)) if path is None else pa.OSFile(path)
            self._groups = read_seal(self._source.read_at, self._source.size())
            self._file = pq.ParquetFile(self._source, pre_buffer=False)
            self.metadata: Any = self._file.metadata
            self._schema: pa.Schema = without_ids(self._file.schema_arrow)
            self._places = self._flat_columns()
            self.sealed_as: str | None = ((self.metadata.metadata or {}).get(NAME_KEY) or b"").decode() or None
            """The name it was sealed under, where it is of a version that notes it."""
        except UNREADABLE as error:
            raise self._damage(error) from error
        if len(self._groups) != self.metadata.num_row_groups:
            raise self._damage(ValueError("its groups are not those that were sealed"))

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows of a group."""
        where = self._groups[group]
        try:
            if google_crc32c.value(self._source.read_at(where.end - where.start, where.start)) != where.crc:
                raise ValueError(f"row group {group} does not match its checksum")
            return self._read(group, self._schema.names if columns is None else columns)
        except UNREADABLE as error:
            raise self._damage(error) from error

    def whole(self) -> bool:
        """Whether every row group matches its checksum."""
        try:
            return all(
                google_crc32c.value(self._source.read_at(group.end - group.start, group.start)) == group.crc
                for group in self._groups
            )
        except UNREADABLE:
            return False

    def _read(self, group: int, columns: Sequence[str]) -> pa.RecordBatch:
        fields = [field for field in self._schema if field.name in columns]
        described = self.metadata.row_group(group)
        known: dict[str, pa.Array] = {}
        for field in fields:
            if field.name in self._places:
                chunk = described.column(self._places[field.name])
                # Rows are ordered by the first column of a table; a column of any other place need not be.
                is_order = field.name == self._schema.names[0]
                array = _run(chunk, field.type) if is_order else _constant(chunk, field.type)
                if array is not None:
                    known[field.name] = array
        others = [field.name for field in fields if field.name not in known]
        if others:
            table = self._file.read_row_group(group, columns=others, use_threads=False).combine_chunks()
            decoded = table.to_batches()[0]
            known.update((name, decoded.column(name)) for name in others)
        return pa.RecordBatch.from_arrays([known[field.name] for field in fields], schema=pa.schema(fields))

    def _flat_columns(self) -> dict[str, int]:
        """Where the columns are that hold one value for each row."""
        paths = [self.metadata.schema.column(place).path for place in range(self.metadata.num_columns)]
        return {path: place for place, path in enumerate(paths) if path in self._schema.names}

    def _damage(self, error: Exception) -> Exception:
        """What to raise: an error of the moment is not damage, and the rows may well be there at the next try."""
        if isinstance(error, FileNotFoundError | pa.ArrowMemoryError):
            return error
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            return StorageError(f"{self._name} cannot be read now: {error.strerror}; try again")
        return Unreadable(f"{self._name} cannot be read ({error}); its rows are missing. Restore it from a copy")


def _constant(chunk: Any, kind: pa.DataType) -> pa.Array | None:
    """A column of a row group that holds one value, or none, made without decoding it."""
    known = chunk.statistics
    if known is None or not known.has_null_count:
        return None
    rows = chunk.num_values
    if known.null_count == rows:
        return pa.nulls(rows, kind)
    if known.null_count or not known.has_min_max or pa.types.is_temporal(kind):
        return None
    least = known.min
    return pa.repeat(pa.scalar(least, kind), rows) if least == known.max else None


def _run(chunk: Any, kind: pa.DataType) -> pa.Array | None:
    """Ascending numbers without a gap, made without decoding them."""
    known = chunk.statistics
    if known is None or not pa.types.is_int64(kind) or not known.has_null_count or known.null_count:
        return None
    rows: int = chunk.num_values
    return pc.add(_counting(rows), known.min) if known.has_min_max and known.max - known.min + 1 == rows else None


@functools.lru_cache(maxsize=16)
def _counting(rows: int) -> pa.Array:
    return pa.array(range(rows), pa.int64())
