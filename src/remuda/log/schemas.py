"""The two tables of the log in Arrow, as sealed files and readers give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
TEXTS: Final = pa.list_(pa.string())
HEADERS: Final = pa.map_(pa.string(), pa.string())

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
        elif field.name == "priority" and "high" in present:
            arrays.append(batch.column("high").cast(field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in wanted])
