"""Sealed files give the rows that were put in, however little of them is decoded."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remuda.log.disk import MemoryDisk
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.sealed.parquet import SealedParquet, write_sealed
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA

VALUES: dict[pa.DataType, tuple[Any, Any]] = {
    pa.string(): ("", "é" * 3000),
    pa.binary(): (b"", b"\xff\x00"),
    pa.int8(): (-1, 5),
    pa.int32(): (0, 7),
    pa.int64(): (0, 1 << 62),
    pa.bool_(): (False, True),
    pa.timestamp("us", tz="UTC"): (0, (1 << 63) - 1),
}
FILLINGS = ("null", "one", "other", "both", "one or null")


def filled(kind: pa.DataType, filling: str, rows: int = 6) -> pa.Array:
    one, other = VALUES.get(kind, ([], []))
    values = {"null": [None], "one": [one], "other": [other], "both": [one, other], "one or null": [one, None]}
    return pa.array(list(itertools.islice(itertools.cycle(values[filling]), rows)), kind)


@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize(("table", "schema"), [("messages", MESSAGES_SCHEMA), ("events", EVENTS_SCHEMA)])
def test_columns_of_one_value_are_read_as_they_were_written(
    table: str, schema: pa.Schema, filling: str, tmp_path: Path
) -> None:
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array(range(first, first + 6)), *(filled(kind, filling) for kind in schema.types[1:])], schema=schema
        )
        for first in (0, 6)
    ]
    disk = DirectoryDisk(tmp_path)
    write_sealed(disk, "sealed.parquet", batches, schema, table)
    file = SealedParquet(disk, "sealed.parquet")
    decoded = pq.ParquetFile(tmp_path / "sealed.parquet")
    for group in (0, 1):
        found = file.read(group)
        found.validate(full=True)
        assert found.equals(decoded.read_row_group(group).combine_chunks().to_batches()[0])
        some = [schema.names[0], *schema.names[3::2]]
        assert file.read(group, some).equals(found.select(some))
        assert file.read(group, some[:1]).equals(found.select(some[:1]))


def test_it_is_known_which_queues_a_row_group_holds() -> None:
    columns = {"offset": pa.array([0, 1, 2]), "queues": pa.array([["fruit"], [], ["stone", "apple"]])}
    arrays = [columns.get(field.name, pa.nulls(3, field.type)).cast(field.type) for field in MESSAGES_SCHEMA]
    disk = MemoryDisk()
    write_sealed(disk, "sealed.parquet", [pa.RecordBatch.from_arrays(arrays, schema=MESSAGES_SCHEMA)], MESSAGES_SCHEMA,
                 "messages")  # fmt: skip
    described = SealedParquet(disk, "sealed.parquet").metadata.row_group(0)
    chunks = [described.column(place) for place in range(described.num_columns)]
    (known,) = (chunk.statistics for chunk in chunks if chunk.path_in_schema == "queues.list.element")
    assert (known.min, known.max) == ("apple", "stone")


@pytest.mark.parametrize(
    ("numbers", "decoded"),
    [
        (range(100, 106), [["body"], []]),
        ([100, 101, 103, 104, 105, 106], [["offset", "body"], ["offset"]]),  # collected since
        ([7], [["body"], []]),
    ],
)
def test_numbers_without_a_gap_are_not_decoded(
    numbers: Any, decoded: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: whoever reads the bodies of a log pays for the bodies."""
    rows = {"offset": list(numbers), "body": [str(number).encode() for number in numbers]}
    arrays = [pa.array(rows.get(field.name, [None] * len(rows["body"])), field.type) for field in MESSAGES_SCHEMA]
    disk = DirectoryDisk(tmp_path)
    batch = pa.RecordBatch.from_arrays(arrays, schema=MESSAGES_SCHEMA)
    write_sealed(disk, "sealed.parquet", [batch], MESSAGES_SCHEMA, "messages")
    read: list[list[str]] = []
    real = pq.ParquetFile.read_row_group

    def noted(file: Any, group: int, columns: list[str], **options: Any) -> Any:
        read.append(columns)
        return real(file, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    sealed = SealedParquet(disk, "sealed.parquet")
    assert sealed.read(0, ["offset", "body"]).to_pydict() == rows
    assert sealed.read(0, ["offset"]).to_pydict() == {"offset": rows["offset"]}
    assert read == [columns for columns in decoded if columns]


def test_numbers_that_rows_are_not_ordered_by_are_read_as_they_are() -> None:
    """A column whose least and greatest value span as many numbers as there are rows may still hold them mixed."""
    mixed = {"position": [4, 5, 6], "first": [12, 10, 11]}
    arrays = [pa.array(mixed.get(field.name, [None] * 3), field.type) for field in EVENTS_SCHEMA]
    disk = MemoryDisk()
    write_sealed(
        disk, "sealed.parquet", [pa.RecordBatch.from_arrays(arrays, schema=EVENTS_SCHEMA)], EVENTS_SCHEMA, "events"
    )
    sealed = SealedParquet(disk, "sealed.parquet")
    assert sealed.read(0, ["position", "first"]).to_pydict() == mixed
    assert sealed.read(0, ["first"]).to_pydict() == {"first": mixed["first"]}
