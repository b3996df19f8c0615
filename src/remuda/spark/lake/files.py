"""The files of a table, written and read by Spark's tasks: no row passes through the driver, none is written twice."""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from remuda.model.errors import StorageError
from remuda.spark.lake.partitions import folder
from remuda.spark.lake.store import Disk, Store, open_store
from remuda.spark.lake.versions import LakeFile

TOLD: Final = "file binary"
"""What a task tells of each file that it wrote."""
_HELD_BYTES: Final = 64 << 20
"""So much a task gathers before it writes of the partitions that have most."""
_OPEN: Final = 64
"""Files that a task has begun at once."""
_ROW_GROUP: Final = 1 << 17

Values = tuple[str | None, ...]


class Writing(msgspec.Struct, frozen=True):
    """How rows become files of a table."""

    place: str
    schema: bytes
    """Of the columns, as Arrow's."""
    folders: tuple[str, ...]
    """The columns that name folders, and are not in the files."""
    apart: tuple[str, ...]
    """All columns of which a file has one value each."""
    bounded: tuple[str, ...] = ()
    """Columns of whole numbers whose least and greatest value are told of each file."""
    block: tuple[str, int] | None = None
    """A column of whole numbers, and how many of them in a row a file holds at most."""

    def files(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write what a task is given."""
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        held = _Held(self, schema)
        for batch in batches:
            if batch.num_rows:
                held.take(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
        done = held.end()
        if done:
            yield named(done)


class _Held:
    """Rows that wait to be written, by the values that their file has one of each."""

    def __init__(self, writing: Writing, schema: pa.Schema) -> None:
        self._writing = writing
        self._schema = schema
        self._rows: dict[Values, list[pa.Table]] = {}
        self._bytes: dict[Values, int] = {}
        self._open: dict[Values, _File] = {}
        self._done: list[LakeFile] = []
        self._store = open_store(writing.place)

    def take(self, rows: pa.Table) -> None:
        for values, some in _parted(rows, self._writing):
            self._rows.setdefault(values, []).append(some)
            self._bytes[values] = self._bytes.get(values, 0) + some.nbytes
        while sum(self._bytes.values()) > _HELD_BYTES:
            self._write(max(self._bytes, key=self._bytes.__getitem__))

    def end(self) -> list[LakeFile]:
        for values in list(self._rows):
            self._write(values)
            self._close(values)
        for values in list(self._open):
            self._close(values)
        return self._done

    def _write(self, values: Values) -> None:
        if values not in self._open:
            if len(self._open) >= _OPEN:
                self._close(next(iter(self._open)))
            self._open[values] = _File(self._writing, self._store, values, self._schema)
        self._open[values].write(pa.concat_tables(self._rows.pop(values)))
        del self._bytes[values]

    def _close(self, values: Values) -> None:
        self._done.append(self._open.pop(values).close())


class _File:
    def __init__(self, writing: Writing, store: Store, values: Values, schema: pa.Schema) -> None:
        self._partition = dict(zip(writing.apart, values, strict=False))
        self._bounds: dict[str, tuple[int, int]] = {}
        self._bounded = writing.bounded
        place = folder(self._partition, writing.folders)
        self._path = f"{place}/{uuid.uuid4().hex}.parquet" if place else f"{uuid.uuid4().hex}.parquet"
        self._store = store
        self._kept = pa.schema([field for field in schema if field.name not in writing.folders])
        self._rows = 0
        self._sink: Any = io.BytesIO()
        if isinstance(store, Disk):
            path = Path(store.place, self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = open(path, "wb")  # noqa: SIM115  # until `close`
        self._writer = pq.ParquetWriter(self._sink, self._kept, compression="zstd", write_page_checksum=True)

    def write(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        for name in self._bounded:
            ends = pc.min_max(rows.column(name)).as_py()
            least, greatest = self._bounds.get(name, (ends["min"], ends["max"]))
            self._bounds[name] = min(least, ends["min"]), max(greatest, ends["max"])
        self._writer.write_table(rows.select(self._kept.names), _ROW_GROUP)

    def close(self) -> LakeFile:
        self._writer.close()
        size = self._sink.tell()
        if isinstance(self._store, Disk):
            self._sink.flush()
            os.fsync(self._sink.fileno())
        else:
            self._store.replace(self._path, self._sink.getvalue())
        self._sink.close()
        now = time.time_ns() // 1_000_000
        return LakeFile(self._path, self._partition, size, self._rows, now, self._bounds)


def _parted(rows: pa.Table, writing: Writing) -> Iterator[tuple[Values, pa.Table]]:
    """Rows by what those of a file have in common: their values of some columns, and their block."""
    columns = {name: rows.column(name) for name in writing.apart}
    if writing.block is not None:
        name, width = writing.block
        columns["block"] = pa.chunked_array([rows.column(name).to_numpy() // width])
    if not columns:
        yield (), rows
        return
    code = np.zeros(rows.num_rows, np.int64)
    for column in columns.values():
        encoded = pa.concat_arrays(column.chunks).dictionary_encode("encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        code = np.unique(code * (len(encoded.dictionary) + 1) + indices, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    for places in np.split(order, cuts):
        some = rows if len(places) == rows.num_rows else rows.take(pa.array(places))
        yield tuple(_text(column[int(places[0])].as_py()) for column in columns.values()), some


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def named(files: Sequence[LakeFile]) -> pa.RecordBatch:
    """Files as tasks tell of them."""
    return pa.RecordBatch.from_pydict({"file": pa.array([msgspec.json.encode(one) for one in files], pa.binary())})


def lake_file(row: Any) -> LakeFile:
    return msgspec.json.decode(row["file"], type=LakeFile)


def check_there(place: str, files: Sequence[LakeFile]) -> None:
    """Raise `StorageError` where what tasks have written is not seen from here."""
    store = open_store(place)
    for file in files:
        if store.size(file.path) != file.size:
            raise StorageError(
                f"tasks have written {file.path} to {place!r}, where it is not seen from here; nothing was committed. "
                "Is the lake's volume mounted on every host, under the same path? Mount it there, then run it again"
            )


class Reading(msgspec.Struct, frozen=True):
    """How files of a table become rows, where Spark's own reader does not come."""

    place: str
    schema: bytes

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        store = open_store(self.place)
        for batch in batches:
            for one in batch.column("file").to_pylist():
                file = msgspec.json.decode(one, type=LakeFile)
                parquet = pq.ParquetFile(io.BytesIO(store.read(file.path)))
                there = [name for name in schema.names if name in parquet.schema_arrow.names]
                for read in parquet.iter_batches(columns=there):
                    yield _completed(read, schema, file.partition)


def _completed(batch: pa.RecordBatch, schema: pa.Schema, partition: Mapping[str, str | None]) -> pa.RecordBatch:
    """All columns of a table: of the file, of its partition, and null where an older file lacks one."""
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        elif (text := partition.get(field.name)) is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(pa.repeat(pa.scalar(text), batch.num_rows).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
