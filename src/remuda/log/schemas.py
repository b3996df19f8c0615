"""The two tables of the log in Arrow, as sealed files and readers give them."""

from __future__ import annotations

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
        ("high", pa.bool_()),
        ("detail", pa.string()),
    ]
)
