"""The two tables of the log in Arrow, as sealed files and readers give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remuda.log.sealed.arrow import pa

TIME: Final = pa.timestamp("us", tz="UTC")
TEXTS: Final = pa.list_(pa.string())
HEADERS: Final = pa.map_(pa.string(), pa.string())
_FIELD_ID: Final = "PARQUET:field_id"

MESSAGES_SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("created", TIME),
        ("id", pa.string()),
        ("name", pa.string()),
        ("topics", TEXTS),
        ("object", pa.string()),
        ("key", pa.string()),
        ("timestamp", TIME),
        ("mime_type", pa.string()),
        ("headers", HEADERS),
        ("priority", pa.int8()),
        ("expires", TIME),
        ("due", TIME),
        ("queues", TEXTS),
        ("digest", pa.binary()),
        ("body", pa.binary()),
        ("wire", pa.binary()),
    ]
)

EVENTS_SCHEMA: Final = pa.schema(
    [
        ("position", pa.int64()),
        ("time", TIME),
        ("queue", pa.string()),
        ("state", pa.string()),
        ("first", pa.int64()),
        ("count", pa.int64()),
        ("consumer", pa.string()),
        ("attempt", pa.int32()),
        ("reason", pa.string()),
        ("due", TIME),
        ("ahead", pa.bool_()),
        ("who", pa.string()),
        ("priority", pa.int8()),
        ("detail", pa.string()),
        ("to", pa.string()),
    ]
)


def with_ids(schema: pa.Schema) -> pa.Schema:
    """The schema with Iceberg's ids of its fields, as sealed files carry them.

    A column's id is its place, so columns are only ever added at the end; what is inside one has an id made of its.
    """
    return pa.schema([_identified(field, number) for number, field in enumerate(schema, 1)])


def inner_id(outer: int, place: int = 0) -> int:
    """The id of what is inside a column: the element of a list, or the key (0) and the value (1) of a map."""
    return 100 * outer + place


def without_ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in schema])


def _identified(field: pa.Field, number: int) -> pa.Field:
    kind = field.type
    if pa.types.is_map(kind):
        key, item = (_identified(one, inner_id(number, at)) for at, one in enumerate((kind.key_field, kind.item_field)))
        kind = pa.map_(key, item)
    elif pa.types.is_list(kind):
        kind = pa.list_(_identified(kind.value_field, inner_id(number)))
    return field.with_type(kind).with_metadata({_FIELD_ID: str(number)})


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return pa.list_(_plain(kind.value_type)) if pa.types.is_list(kind) else kind


def conform(batch: pa.RecordBatch, schema: pa.Schema, columns: Sequence[str] | None) -> pa.RecordBatch:
    """Rows of a file that an earlier version wrote, with the columns of today."""
    wanted = [field for field in schema if columns is None or field.name in columns]
    if batch.schema.names == [field.name for field in wanted]:
        return batch
    present = set(batch.schema.names)
    arrays = []
    for field in wanted:
        if field.name in present:
            arrays.append(batch.column(field.name))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in wanted])
