"""Lives (M7): one row for each message and queue, folded from its events."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.spark.source.data_source import table_schema
from remuda.spark.source.folding import EVENT_COLUMNS, MESSAGE_COLUMNS, fold
from remuda.spark.source.tables import LIFECYCLE

_BLOCK: Final = 1 << 15
"""Adjacent messages that are folded together: enough for columns to pay, and few enough to be spread evenly."""


def lifecycle(messages: DataFrame, events: DataFrame) -> DataFrame:
    """What the broker would report of every message, row by row."""
    # Columns of a block go to Python and back as they are. That costs half of Spark's own aggregates, which the texts
    # in a life keep out of generated code.
    own = messages.select(_block("offset").alias("block"), *MESSAGE_COLUMNS)
    changes = events.select(F.explode(_blocks()).alias("block"), *EVENT_COLUMNS)
    return own.groupBy("block").cogroup(changes.groupBy("block")).applyInArrow(_folded, table_schema(LIFECYCLE))


def _folded(messages: pa.Table, events: pa.Table) -> pa.Table:
    rows = fold(messages.sort_by("offset"), events.sort_by("position"))
    return pa.Table.from_batches([rows])


def _blocks() -> Column:
    """The blocks of the messages that an event concerns, nearly always one."""
    return F.sequence(_block("first"), _block("first + count - 1"))


def _block(offset: str) -> Column:
    return F.expr(f"({offset}) div {_BLOCK}")
