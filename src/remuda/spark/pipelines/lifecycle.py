"""Lives (M7): one row for each message and queue, folded from its events."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.spark.folding import EVENT_COLUMNS, MESSAGE_COLUMNS, fold
from remuda.spark.source import table_schema
from remuda.spark.tables import LIFECYCLE

_BLOCK: Final = 1 << 15
"""Neighbouring messages that are told of together: enough for columns to pay, and few enough to be dealt out evenly."""


def lifecycle(messages: DataFrame, events: DataFrame) -> DataFrame:
    """What the broker would tell of every message, row by row."""
    # Columns of a block go to Python and back as they are. Half of what it costs in Spark's own terms, where the texts
    # in a life keep an aggregate out of generated code.
    told = messages.select(_block("offset").alias("block"), *MESSAGE_COLUMNS)
    telling = events.select(F.explode(_blocks()).alias("block"), "position", *EVENT_COLUMNS)
    return told.groupBy("block").cogroup(telling.groupBy("block")).applyInArrow(_folded, table_schema(LIFECYCLE))


def _folded(messages: pa.Table, events: pa.Table) -> pa.Table:
    rows = fold(messages.sort_by("offset"), events.sort_by("position"))
    return pa.Table.from_batches([rows])


def _blocks() -> Column:
    """The blocks that an event tells of, nearly always one."""
    return F.sequence(_block("first"), _block("first + count - 1"))


def _block(offset: str) -> Column:
    return F.expr(f"({offset}) div {_BLOCK}")
