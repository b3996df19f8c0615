"""Jobs: the pipelines over a log and a lake, once or for as long as the process runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DoubleType, LongType, StringType, StructType, TimestampType

from remuda.log.spool import SPOOL_SCHEMA
from remuda.model.durations import DAY, micros
from remuda.model.errors import Conflict, InvalidOption
from remuda.model.state import State
from remuda.spark import read
from remuda.spark.lake import LakeTable
from remuda.spark.pipelines.archive import (
    archived_events,
    archived_messages,
    events_table,
    lifecycle_table,
    messages_table,
)
from remuda.spark.pipelines.history import history
from remuda.spark.pipelines.ingest import completed, judged
from remuda.spark.pipelines.metrics import metrics
from remuda.spark.pipelines.replay import replayed
from remuda.spark.pipelines.retention import retained
from remuda.spark.port import directory
from remuda.spark.sink import query_id
from remuda.spark.tables import EVENTS, LIFECYCLE, MESSAGES

CHECKPOINTS: Final = "_checkpoints"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job reads and writes, and how it runs."""

    url: str
    lake: str
    continuous: bool = False
    """Follow the log until stopped, instead of reading what is there and ending."""
    options: Mapping[str, str] = {}


Job = Callable[[SparkSession, Place], list[StreamingQuery]]
"""Starts a job. One that runs once is done when it returns; of one that goes on, the queries that run are given."""


def archive(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """log → lake, parted by date and queue"""

    def begin(table: str, shape: Callable[[DataFrame], DataFrame], target: LakeTable) -> StreamingQuery:
        def add(rows: DataFrame, app: str, batch: int) -> None:
            _check_sole(target, app)
            target.append(shape(rows), app=app, batch=batch)

        return _follow(spark, place, "archive", table, add)

    return _finish(
        place,
        [
            begin(MESSAGES, archived_messages, messages_table(place.lake)),
            begin(EVENTS, archived_events, events_table(place.lake)),
        ],
    )


def lifecycle(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """events → one row for each message and queue"""
    target = lifecycle_table(place.lake)

    def merge(rows: DataFrame, app: str, batch: int) -> None:
        # Kept, since they are asked for three times, and would be read from the log and counted as often.
        dated = rows.withColumn("date", F.to_date("created")).persist()
        try:
            dates = {str(row[0]) for row in dated.select("date").distinct().collect()}
            target.rewrite(
                rows.sparkSession,
                lambda partition: partition["date"] in dates,
                lambda old: latest(old, dated),
                app=app,
                batch=batch,
            )
        finally:
            dated.unpersist()

    return _finish(place, [_follow(spark, place, "lifecycle", LIFECYCLE, merge)])


def latest(old: DataFrame, new: DataFrame) -> DataFrame:
    """Lives as they are now: new rows in the place of old ones of the same message and queue."""
    same = old["offset"].eqNullSafe(new["offset"]) & old["queue"].eqNullSafe(new["queue"])
    return old.join(new, same, "left_anti").unionByName(new)


def run_history(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """object and key → last hash and version"""
    _once_only(place, "history")
    _replace(history_table(place.lake), spark, history(read(spark, place.url, MESSAGES)))
    return []


def run_metrics(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """rates, waiting and processing times, retries, per queue and window (option window, 1 minute)"""
    _once_only(place, "metrics")
    window = place.options.get("window", "1 minute")
    _replace(metrics_table(place.lake), spark, metrics(read(spark, place.url, LIFECYCLE), window))
    return []


def ingest(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """files → compacter → distributor → queues (options source, format, order, repeats, app, batch)

    The broker judges by the same rules when it takes the rows in, and logs what is unchanged as such. With
    `repeats=drop` repetitions are held back here, which spares a broker that shall not log them.
    """
    _once_only(place, "ingest")
    source, order = _needed(place, "ingest", "source"), _needed(place, "ingest", "order")
    rows = completed(spark.read.format(place.options.get("format", "parquet")).load(source))
    if place.options.get("repeats", "keep") == "drop":
        rows = judged(rows, order).where(F.col("state") == State.QUEUED.value)
    columns = [name for name in SPOOL_SCHEMA.names if name in rows.columns]
    _publish(rows.orderBy(order).select(*columns), place)
    return []


def replay(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """lake → back into queues (options where, to, app, batch)"""
    _once_only(place, "replay")
    rows = messages_table(place.lake).read(spark).where(_needed(place, "replay", "where"))
    _publish(replayed(rows, place.options.get("to")), place)
    return []


def retention(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """lake: what succeeded goes after a day, what ended without success after 15 (options success, dead)"""
    _once_only(place, "retention")
    success = micros(place.options["success"]) if "success" in place.options else DAY
    dead = micros(place.options["dead"]) if "dead" in place.options else 15 * DAY
    now = datetime.now(UTC)

    def before(age: int) -> Callable[[Mapping[str, str | None]], bool]:
        horizon = (now - timedelta(microseconds=age)).date().isoformat()
        return lambda partition: (partition["date"] or "") <= horizon

    lives = lifecycle_table(place.lake)
    told = lives.read(spark)
    old = before(min(success, dead))
    for table in (messages_table(place.lake), lives):
        if any(old(file.partition) for file in table.manifest().files):
            table.rewrite(spark, old, lambda rows: retained(rows, told, now, success, dead))
        table.vacuum()
    # Events tell of many messages at once: they go by whole days, when the longest retention is over.
    events = events_table(place.lake)
    events.drop(before(max(success, dead) + DAY))
    events.vacuum()
    return []


def history_table(lake: str) -> LakeTable:
    schema = StructType()
    for name, kind in (
        ("object", "string"), ("key", "string"), ("digest", "binary"), ("version", "long"), ("messages", "long"),
        ("offset", "long"), ("first", "timestamp"), ("last", "timestamp"),
    ):  # fmt: skip
        schema = schema.add(name, kind)
    return LakeTable(lake, "history", schema, ())


def metrics_table(lake: str) -> LakeTable:
    schema = StructType().add("start", TimestampType()).add("queue", StringType())
    for name in ("published", "succeeded", "retried", "dead", "unchanged", "waiting"):
        schema = schema.add(name, LongType())
    for name in ("wait", "processing"):
        for share in (50, 95, 99):
            schema = schema.add(f"{name}_p{share}", DoubleType())
    return LakeTable(lake, "metrics", schema.add("rate", DoubleType()), ())


JOBS: Final[Mapping[str, Job]] = {
    "archive": archive,
    "lifecycle": lifecycle,
    "history": run_history,
    "metrics": run_metrics,
    "ingest": ingest,
    "replay": replay,
    "retention": retention,
}


def checkpoint_of(lake: str, job: str, table: str) -> Path:
    return Path(directory(lake)) / CHECKPOINTS / f"{job}-{table}"


def _follow(
    spark: SparkSession, place: Place, job: str, table: str, take: Callable[[DataFrame, str, int], Any]
) -> StreamingQuery:
    stream = spark.readStream.format("remuda").option("table", table)
    if "maxRows" in place.options:
        stream = stream.option("maxRowsPerTrigger", place.options["maxRows"])
    checkpoint = str(checkpoint_of(place.lake, job, table))

    def each(rows: DataFrame, batch: int) -> None:
        # Spark counts batches from 0 again in a new checkpoint: its id tells them from those of an older one.
        take(rows, query_id(checkpoint), batch)

    writer = stream.load(place.url).writeStream.queryName(f"{job}-{table}").foreachBatch(each)
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer if place.continuous else writer.trigger(availableNow=True)).start()


def _check_sole(table: LakeTable, app: str) -> None:
    """Rows that are only ever added must all come from one query, or they would be there twice."""
    newest = table.manifest()
    if newest.version and newest.last_batch(app) is None:
        raise Conflict(
            f"table {table.root.name!r} was filled by a query whose checkpoint is gone, and would be filled again from "
            "the beginning; nothing was written. Restore the checkpoint, or choose another lake"
        )


def _finish(place: Place, queries: list[StreamingQuery]) -> list[StreamingQuery]:
    if not place.continuous:
        for query in queries:
            query.awaitTermination()
    return queries


def _publish(rows: DataFrame, place: Place) -> None:
    """Under the same name and number the same rows are published once, however often the job runs."""
    writer = rows.write.format("remuda").mode("append")
    if "app" in place.options:
        writer = writer.option("appId", place.options["app"]).option("batchId", place.options.get("batch", "0"))
    writer.save(place.url)


def _replace(table: LakeTable, spark: SparkSession, rows: DataFrame) -> None:
    table.rewrite(spark, lambda partition: True, lambda old: rows)
    table.vacuum()


def _once_only(place: Place, job: str) -> None:
    if place.continuous:
        raise InvalidOption(f"{job} runs over what is there and ends; run it again for what came since")


def _needed(place: Place, job: str, option: str) -> str:
    try:
        return place.options[option]
    except KeyError:
        raise InvalidOption(f"{job} needs the option {option!r}: --set {option}=…") from None
