"""The tables that Spark sees, declared once."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA, TIME
from remuda.model.errors import InvalidOption

MESSAGES: Final = "messages"
EVENTS: Final = "events"
LIFECYCLE: Final = "lifecycle"
WORKFLOWS: Final = "workflows"
STEPS: Final = "steps"
"""Runs of workflows and what was recorded of them: for `remuda.spark.read` only, made from the other tables."""

CONSUMED_BY: Final = pa.list_(
    pa.struct([("consumer", pa.string()), ("fetched", TIME), ("confirmed", TIME), ("duration", pa.int64())])
)

LIFECYCLE_SCHEMA: Final = pa.schema(
    [
        ("offset", pa.int64()),
        ("queue", pa.string()),
        ("id", pa.string()),
        ("name", pa.string()),
        ("object", pa.string()),
        ("key", pa.string()),
        ("state", pa.string()),
        ("queued", pa.bool_()),
        ("delivered", pa.bool_()),
        ("success", pa.bool_()),
        ("archived", pa.bool_()),
        ("created", TIME),
        ("modified", TIME),
        ("consumed", TIME),
        ("processed", TIME),
        ("completed", TIME),
        ("failed", TIME),
        ("topic_count", pa.int32()),
        ("confirmed_count", pa.int32()),
        ("attempts", pa.int32()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("consumed_by", CONSUMED_BY),
        ("duration", pa.int64()),
        ("moved_to", pa.string()),
        ("position", pa.int64()),
    ]
)
"""One row for each message and queue (M7). A message that went to no queue has one row, with no queue and state U."""

SCHEMAS: Final = {MESSAGES: MESSAGES_SCHEMA, EVENTS: EVENTS_SCHEMA, LIFECYCLE: LIFECYCLE_SCHEMA}
NUMBER: Final = {MESSAGES: "offset", EVENTS: "position", LIFECYCLE: "offset"}
"""What the rows of a table are numbered by."""
MOMENT: Final = {MESSAGES: "created", EVENTS: "time", LIFECYCLE: "created"}
"""The column that `since` and `until` refer to."""


def check_table(table: str) -> str:
    if not isinstance(table, str) or table not in SCHEMAS:
        raise InvalidOption(f"there is no table {table!r}; the tables are {', '.join(SCHEMAS)}")
    return table
