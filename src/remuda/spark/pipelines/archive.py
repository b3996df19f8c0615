"""Archive: the log as lake tables, partitioned by date, and each queue's rows in files of their own."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, StringType, StructType

from remuda.model.values.durations import DAY
from remuda.spark.lake.table import LakeTable
from remuda.spark.lake.versions import LOG_COLUMN, Blocks
from remuda.spark.source.data_source import table_schema
from remuda.spark.source.tables import EVENTS, LIFECYCLE, MESSAGES

_LIVES: Final = 1 << 17
"""Adjacent messages whose lives are in one file, and rewritten if one of them changes."""


def archived_messages(messages: DataFrame) -> DataFrame:
    """One row for each message and queue; those that went to no queue have one without."""
    return messages.withColumns({"date": utc_date("created"), "queue": F.explode_outer("queues")})


def archived_events(events: DataFrame) -> DataFrame:
    return events.withColumn("date", utc_date("time"))


def named(rows: DataFrame, log: str | None) -> DataFrame:
    """Rows with the name of the log that they are of."""
    return rows.withColumn(LOG_COLUMN, F.lit(log).cast("string"))


def is_of(log: str | None) -> Column:
    """Whether a row is of the log with this name."""
    return F.col(LOG_COLUMN).eqNullSafe(F.lit(log))


def utc_date(time: str) -> Column:
    """The day of a time in UTC, whatever time zone the session has: partitions must not depend on who writes them."""
    micros = F.unix_micros(time)
    return F.date_from_unix_date(((micros - F.pmod(micros, F.lit(DAY))) / F.lit(DAY)).cast("int"))


def messages_table(lake: str) -> LakeTable:
    return LakeTable(lake, MESSAGES, _partitioned(MESSAGES), ("date",), apart=("queue", LOG_COLUMN))


def events_table(lake: str) -> LakeTable:
    return LakeTable(lake, EVENTS, _partitioned(EVENTS), ("date",), apart=("queue", LOG_COLUMN))


def lifecycle_table(lake: str) -> LakeTable:
    return LakeTable(
        lake, LIFECYCLE, _partitioned(LIFECYCLE), ("date",), apart=(LOG_COLUMN,), blocks=Blocks("offset", _LIVES)
    )


def _partitioned(table: str) -> StructType:
    columns = [field for field in table_schema(table).fields if field.name != "queue"]
    schema = StructType(columns).add("date", DateType())
    return schema.add(LOG_COLUMN, StringType()).add("queue", StringType())
