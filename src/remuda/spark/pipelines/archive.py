"""Archive: the log as lake tables, parted by date and queue."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, StringType, StructType

from remuda.spark.lake import LakeTable
from remuda.spark.source import table_schema
from remuda.spark.tables import EVENTS, LIFECYCLE, MESSAGES


def archived_messages(messages: DataFrame) -> DataFrame:
    """One row for each message and queue; those that went to no queue have one without."""
    return messages.withColumns({"date": F.to_date("created"), "queue": F.explode_outer("queues")})


def archived_events(events: DataFrame) -> DataFrame:
    return events.withColumn("date", F.to_date("time"))


def messages_table(lake: str) -> LakeTable:
    return LakeTable(lake, MESSAGES, _parted(MESSAGES), ("date", "queue"))


def events_table(lake: str) -> LakeTable:
    return LakeTable(lake, EVENTS, _parted(EVENTS), ("date", "queue"))


def lifecycle_table(lake: str) -> LakeTable:
    return LakeTable(lake, LIFECYCLE, _parted(LIFECYCLE), ("date",))


def _parted(table: str) -> StructType:
    columns = [field for field in table_schema(table).fields if field.name != "queue"]
    schema = StructType(columns).add("date", DateType())
    return schema.add("queue", StringType())
