"""Jobs: the pipelines over a log and a lake, once or for as long as the process runs."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, DoubleType, LongType, StringType, StructType, TimestampType
from pyspark.sql.utils import is_remote

from remuda.log.spool import MOST_NUMBER
from remuda.model.durations import DAY, micros
from remuda.model.errors import Conflict, InvalidOption, NotFound
from remuda.model.texts import read_name
from remuda.spark.checkpoints import check_checkpoint, is_begun, last_batch, offsets, sole_use
from remuda.spark.lake import LakeTable
from remuda.spark.options import check_names, truth, whole_number
from remuda.spark.pipelines.archive import (
    archived_events,
    archived_messages,
    events_table,
    lifecycle_table,
    messages_table,
    utc_date,
)
from remuda.spark.pipelines.history import history
from remuda.spark.pipelines.index import build as build_index
from remuda.spark.pipelines.index import follow as follow_index
from remuda.spark.pipelines.ingest import messages_of
from remuda.spark.pipelines.mending import mend, mend_windows
from remuda.spark.pipelines.metrics import COUNTS, fuller, metrics, spans, window_seconds, window_start
from remuda.spark.pipelines.replay import replayed
from remuda.spark.pipelines.retention import retained
from remuda.spark.port import directory, open_log, shown
from remuda.spark.sink import query_id
from remuda.spark.stream import check_log
from remuda.spark.tables import EVENTS, LIFECYCLE, MESSAGES

CHECKPOINTS: Final = "_checkpoints"
FILES: Final = "_files"
"""Checkpoints of queries that follow a directory of files instead of the log."""
DEFAULT_WINDOW: Final = "1 minute"
_HISTORY_PARTS: Final = 32
_STARTS: Final = 4
_TOO_BUSY: Final = "Python worker failed to connect back"
_FOLLOWING: Final = ("maxRows", "failOnDataLoss")
"""Options of all pipelines that follow the log."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job reads and writes, and how it runs."""

    url: str
    lake: str
    continuous: bool = False
    """Follow the log until stopped, instead of reading what is there and ending."""
    options: Mapping[str, str] = {}
    tell: Callable[[str, Mapping[str, int]], None] = lambda deed, counts: None
    """Called by a job that runs once: what it did, in a word or two, and how many of what."""


Take = Callable[[DataFrame, str, int], None]
"""Handles a micro-batch: its rows, the id of its query, and its number."""
Job = Callable[[SparkSession, Place], list[StreamingQuery]]
"""Starts a job. One that runs once is done when this returns; for one that keeps running, it returns the queries."""


def archive(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """log → lake, partitioned by date and queue"""

    def begin(table: str, shape: Callable[[DataFrame], DataFrame], target: LakeTable) -> StreamingQuery:
        if not is_begun(checkpoint_of(place.lake, "archive", table)) and target.manifest().version and not is_remote():
            raise _lost(target)

        def add(rows: DataFrame, app: str, batch: int) -> None:
            _check_sole(target, app)
            target.append(shape(rows), app=app, batch=batch)

        return _follow(spark, place, "archive", table, add)

    return _finish(
        place,
        partial(begin, MESSAGES, archived_messages, messages_table(place.lake)),
        partial(begin, EVENTS, archived_events, events_table(place.lake)),
    )


def lifecycle(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """events → one row for each message and queue"""
    target = lifecycle_table(place.lake)

    def merge(rows: DataFrame, app: str, batch: int) -> None:
        _merge(target, rows.withColumn("date", utc_date("created")), "date", latest, app, batch)

    checkpoint = _check_checkpoint(place, "lifecycle", LIFECYCLE)  # or lives would be mended from another log
    with _sole_use(checkpoint):
        mend(spark, place.url, target, messages_table(place.lake), events_table(place.lake))
    return _finish(place, partial(_follow, spark, place, "lifecycle", LIFECYCLE, merge))


def latest(old: DataFrame | None, new: DataFrame) -> DataFrame:
    """Lives as they are now: new rows in the place of old ones of the same message and queue."""
    if old is None:
        return new
    same = old["offset"].eqNullSafe(new["offset"]) & old["queue"].eqNullSafe(new["queue"])
    return old.join(new, same, "left_anti").unionByName(new)


def run_history(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """object and key → last hash and version"""
    target = history_table(place.lake)

    def merge(rows: DataFrame, app: str, batch: int) -> None:
        def continued(old: DataFrame | None, new: DataFrame) -> DataFrame:
            # Every task has rows of every part: brought together, they are one file for each part.
            return _in_parts(history(new, old)).repartition("part")

        _merge(target, _in_parts(rows), "part", continued, app, batch)

    columns = "offset bigint, created timestamp, object string, key string, digest binary"
    return _finish(place, partial(_follow, spark, place, "history", MESSAGES, merge, columns))


def _in_parts(rows: DataFrame) -> DataFrame:
    """Rows with the part of the history that their object and key belong to."""
    known = rows.where(F.col("digest").isNotNull())
    return known.withColumn("part", F.pmod(F.xxhash64("object", "key"), F.lit(_HISTORY_PARTS)).cast("int"))


def run_metrics(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """rates, waiting and processing times, retries, per queue and window (option window, 1 minute)"""
    window = place.options.get("window", DEFAULT_WINDOW)
    target = metrics_table(place.lake, window)

    def recount(rows: DataFrame, app: str, batch: int) -> None:
        """Recompute the windows in which changed messages were published, however long ago that was."""
        changed = rows.select(F.unix_micros(window_start(window)).alias("start")).distinct()
        starts = sorted(row["start"] for row in changed.collect())
        spark = rows.sparkSession
        lives = [_published(spark, place.url, *span) for span in spans(starts, window)]
        if not lives:
            return
        dates = sorted({datetime.fromtimestamp(start / 1e6, UTC).date().isoformat() for start in starts})
        windows = metrics(reduce(DataFrame.unionByName, lives), window).withColumn("date", utc_date("start"))
        # Spans may reach over days in which nothing changed, and which are not rewritten.
        counted = windows.where(F.col("date").cast("string").isin(dates))
        target.rewrite(
            spark, lambda partition: partition["date"] in dates, lambda old: fuller(old, counted), app=app, batch=batch
        )
        target.vacuum()

    job = target.root.name
    with _sole_use(_check_checkpoint(place, job, LIFECYCLE)):
        mend_windows(spark, place.url, target, window, partial(_published, spark, place.url))
    return _finish(place, partial(_follow, spark, place, job, LIFECYCLE, recount, "created timestamp"))


def ingest(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """files → compacter → distributor → queues (options source, format, schema, order, repeats, app, batch)

    The broker applies the same rules when it takes the rows in, and logs unchanged messages as such. With
    `repeats=drop`, repetitions are dropped here, so that the broker does not log them.
    """
    source, order = _needed(place, "ingest", "source"), _needed(place, "ingest", "order")
    kind, drop = place.options.get("format", "parquet"), _choice(place, "repeats", "keep", "drop") == "drop"
    files = spark.read.format(kind)
    if "schema" in place.options:
        files = files.schema(place.options["schema"])
    if not place.continuous:
        _check_batch(place)
        _publish_once(messages_of(files.load(source), order, drop=drop), place)
        return []
    for name in ("app", "batch"):
        if name in place.options:
            raise InvalidOption(f"{name} is for --once: with --continuous, Spark numbers the batches")

    def publish(rows: DataFrame, app: str, batch: int) -> None:
        # Persisted: the rows are looked at before they are sorted, and would otherwise be read and counted each time.
        kept = rows.persist()
        try:
            _publish(messages_of(kept, order, drop=drop), place.url, app, batch)
        finally:
            kept.unpersist()

    stream = spark.readStream.format(kind).schema(_shape(files, source)).load(source)
    checkpoint = Path(directory(place.lake)) / FILES / sha256(source.encode()).hexdigest()[:16]
    if not is_remote():
        check_checkpoint(checkpoint)
    return [_start(stream, "ingest-files", checkpoint, publish, continuous=True)]


def replay(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """lake → back into queues (options where, to, app, batch)"""
    _once_only(place, "replay")
    where = _needed(place, "replay", "where")
    to = read_name("to", place.options["to"]) if "to" in place.options else None
    _check_batch(place)
    table = messages_table(place.lake)
    if not table.manifest().version and not is_begun(checkpoint_of(place.lake, "archive", MESSAGES)):
        raise _no_archive(place, "replayed")
    _publish_once(replayed(table.read(spark).where(where), to), place)
    return []


def retention(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """lake: removes succeeded messages after a day, dead ones after 15 (options success, dead)"""
    _once_only(place, "retention")
    success = micros(place.options["success"]) if "success" in place.options else DAY
    dead = micros(place.options["dead"]) if "dead" in place.options else 15 * DAY
    now = datetime.now(UTC)

    def before(age: int) -> Callable[[Mapping[str, str | None]], bool]:
        horizon = (now - timedelta(microseconds=age)).date().isoformat()
        return lambda partition: (partition["date"] or "") <= horizon

    lives = lifecycle_table(place.lake)
    begun = [checkpoint_of(place.lake, *job) for job in (("archive", MESSAGES), ("lifecycle", LIFECYCLE))]
    if not (lives.manifest().version or messages_table(place.lake).manifest().version or any(map(is_begun, begun))):
        raise _no_archive(place, "removed")
    known_lives = lives.read(spark)
    old = before(min(success, dead))
    removed = {}
    for table in (messages_table(place.lake), lives):
        known = table.row_count(old)
        if known:
            table.rewrite(spark, old, lambda rows: retained(rows, known_lives, now, success, dead))
        removed[table.root.name] = known - table.row_count(old)
        table.vacuum()
    # One event concerns many messages: events are removed by whole days, when the longest retention is over.
    events = events_table(place.lake)
    over = before(max(success, dead) + DAY)
    removed[events.root.name] = events.row_count(over)
    events.drop(over)
    events.vacuum()
    place.tell("removed", removed)
    return []


def index(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """log → search index, rebuilt in bulk (option index: a folder, or opensearch://host:port/name)"""
    where = place.options.get("index")
    build_index(spark, place.url, where)
    if not place.continuous:
        return []

    def follow(rows: DataFrame, app: str, batch: int) -> None:
        follow_index(place.url, where)  # the rows say that there is something new; the log says what

    return [_follow(spark, place, "index", LIFECYCLE, follow, "offset bigint")]


def history_table(lake: str) -> LakeTable:
    schema = StructType()
    for name, kind in (
        ("object", "string"), ("key", "string"), ("digest", "binary"), ("version", "long"), ("messages", "long"),
        ("offset", "long"), ("first", "timestamp"), ("last", "timestamp"), ("part", "integer"),
    ):  # fmt: skip
        schema = schema.add(name, kind)
    return LakeTable(lake, "history", schema, ("part",))


def lake_table(lake: str, name: str) -> LakeTable:
    """A table that a pipeline filled; raises `NotFound` where there is none."""
    made: dict[str, Callable[[str], LakeTable]] = {
        MESSAGES: messages_table, EVENTS: events_table, LIFECYCLE: lifecycle_table, "history": history_table,
        "metrics": metrics_table,
    }  # fmt: skip
    other = re.fullmatch(r"metrics-([\d.]+)s", name) if isinstance(name, str) else None
    if other:
        made[name] = lambda lake: metrics_table(lake, f"{other[1]} seconds")
    if not isinstance(name, str) or name not in made:
        raise InvalidOption(f"there is no table {name!r}; the tables are {', '.join(made)}, and metrics-…s of windows")
    table = made[name](lake)
    if not table.manifest().version:
        raise NotFound(f"the lake {lake!r} has no table {name!r} yet; run the pipeline that fills it")
    return table


def metrics_table(lake: str, window: str = DEFAULT_WINDOW) -> LakeTable:
    """The table of windows of one length; that of another has its own."""
    schema = StructType().add("start", TimestampType()).add("queue", StringType())
    for name in COUNTS:
        schema = schema.add(name, LongType())
    for name in ("wait", "processing"):
        for share in (50, 95, 99):
            schema = schema.add(f"{name}_p{share}", DoubleType())
    schema = schema.add("rate", DoubleType()).add("date", DateType())
    seconds = window_seconds(window)
    name = "metrics" if seconds == window_seconds(DEFAULT_WINDOW) else f"metrics-{seconds:.15g}s"
    return LakeTable(lake, name, schema, ("date",))


def checked(job: Job, *known: str) -> Job:
    """A job that refuses options which it does not have."""

    @functools.wraps(job)
    def run(spark: SparkSession, place: Place) -> list[StreamingQuery]:
        return job(spark, msgspec.structs.replace(place, options=check_names(place.options, known)))

    return run


JOBS: Final[Mapping[str, Job]] = {
    "archive": checked(archive, *_FOLLOWING),
    "lifecycle": checked(lifecycle, *_FOLLOWING),
    "history": checked(run_history, *_FOLLOWING),
    "metrics": checked(run_metrics, "window", *_FOLLOWING),
    "ingest": checked(ingest, "source", "format", "schema", "order", "repeats", "app", "batch"),
    "replay": checked(replay, "where", "to", "app", "batch"),
    "retention": checked(retention, "success", "dead"),
    "index": checked(index, "index", *_FOLLOWING),
}


def checkpoint_of(lake: str, job: str, table: str) -> Path:
    return Path(directory(lake)) / CHECKPOINTS / f"{job}-{table}"


def _follow(
    spark: SparkSession, place: Place, job: str, table: str, take: Take, columns: str | None = None
) -> StreamingQuery:
    stream = spark.readStream.format("remuda").option("table", table)
    if columns is not None:
        stream = stream.schema(columns)
    if (rows := whole_number(place.options, "maxRows", least=1)) is not None:
        stream = stream.option("maxRowsPerTrigger", rows)
    stream = stream.option("failOnDataLoss", truth(place.options, "failOnDataLoss", default=True))
    checkpoint = _check_checkpoint(place, job, table)
    return _start(stream.load(place.url), f"{job}-{table}", checkpoint, take, continuous=place.continuous)


def _check_checkpoint(place: Place, job: str, table: str) -> Path:
    """The checkpoint of a job, if it is one and of this log."""
    open_log(place.url)  # or say what is wrong with it, before anything is made in the lake
    checkpoint = checkpoint_of(place.lake, job, table)
    if not is_remote():  # else it is the server's to look at
        check_checkpoint(checkpoint)
        if (done := last_batch(checkpoint)) is not None:
            check_log(place.url, table, offsets(checkpoint, done))
    return checkpoint


def _start(stream: DataFrame, name: str, checkpoint: Path, take: Take, *, continuous: bool) -> StreamingQuery:
    def each(rows: DataFrame, batch: int) -> None:
        # Spark counts batches from 0 again in a new checkpoint: its id distinguishes them from those of an older one.
        take(rows, query_id(place), batch)

    place = str(checkpoint)
    writer = stream.writeStream.queryName(name).foreachBatch(each).option("checkpointLocation", place)
    with contextlib.ExitStack() as uses:
        uses.enter_context(_sole_use(checkpoint))
        query = (writer if continuous else writer.trigger(availableNow=True)).start()
        until_end = uses.pop_all()
    threading.Thread(target=_end_with, args=(query, until_end), name=f"{name}-end", daemon=True).start()
    return query


def _sole_use(checkpoint: Path) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if is_remote() else sole_use(checkpoint)  # a remote one is the server's to lock


def _end_with(query: StreamingQuery, uses: contextlib.ExitStack) -> None:
    """Release a checkpoint once its query has ended. How it ended is for the caller that started it to find out."""
    with uses, contextlib.suppress(Exception):
        query.awaitTermination()


def _merge(
    target: LakeTable,
    rows: DataFrame,
    partition: str,
    change: Callable[[DataFrame | None, DataFrame], DataFrame],
    app: str,
    batch: int,
) -> None:
    """Combine rows with those of the table, if it has any, in the partitions that they belong to."""
    spark = rows.sparkSession
    if not target.manifest().files:
        target.rewrite(spark, lambda _: True, lambda _: change(None, rows), app=app, batch=batch)
        return
    # Persisted: the rows are used three times, and would be read from the log as often.
    kept = rows.persist()
    try:
        concerned = {str(row[0]) for row in kept.select(partition).distinct().collect()}
        target.rewrite(
            spark,
            lambda values: values[partition] in concerned,
            lambda old: change(old, kept),
            app=app,
            batch=batch,
        )
    finally:
        kept.unpersist()
    target.vacuum()


def _published(spark: SparkSession, url: str, since: int, until: int) -> DataFrame:
    """Lives of the messages that were published from one time to before another (microseconds)."""
    # What is missing was reported by the stream that led here.
    lives = spark.read.format("remuda").option("table", LIFECYCLE).option("failOnDataLoss", False)
    return lives.option("since", since).option("until", until).load(url)


def _shape(files: DataFrameReader, source: str) -> StructType:
    """The columns of files, of which some must be there already."""
    try:
        return files.load(source).schema
    except AnalysisException as error:
        raise InvalidOption(
            f"the columns of the files in {source!r} are not known: {error.getMessage()}. Put a file there, or name "
            "the columns: --set schema='name string, body string'"
        ) from error


def _check_sole(table: LakeTable, app: str) -> None:
    """Rows that are only ever added must all come from one query, or they would be there twice."""
    newest = table.manifest()
    if newest.version and newest.last_batch(app) is None:
        raise _lost(table)


def _lost(table: LakeTable) -> Conflict:
    return Conflict(
        f"table {table.root.name!r} was filled by a query whose checkpoint is gone, and would be filled again from "
        "the beginning; nothing was written. Restore the checkpoint, or choose another lake"
    )


def _finish(place: Place, *begins: Callable[[], StreamingQuery]) -> list[StreamingQuery]:
    """Start queries, and wait for them where they come to an end."""
    queries: list[StreamingQuery] = []
    try:
        for begin in begins:
            queries.append(_begun(begin))
        if not place.continuous:
            for begin, query in zip(begins, queries, strict=True):
                _await(query, begin)
    except BaseException:
        for query in queries:
            query.stop()  # or it would keep running, and be in the way of the next try
        raise
    return queries


def _begun(begin: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query. Spark gives its Python ten seconds to start, which is too short on a busy machine: it is tried
    again. Over Spark Connect that Python starts with the query, otherwise later (see `_await`)."""
    for _ in range(_STARTS - 1):
        try:
            return begin()
        except PySparkException as error:
            if _TOO_BUSY not in str(error):
                raise
    return begin()


def _await(query: StreamingQuery, begin: Callable[[], StreamingQuery]) -> None:
    """Wait for a query; if its Python did not start in time, begin it again: what it has done is in its checkpoint."""
    for left in reversed(range(_STARTS)):
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            if not left or _TOO_BUSY not in str(error):
                raise
        query = _begun(begin)


def _check_batch(place: Place) -> None:
    if "batch" in place.options and "app" not in place.options:
        raise InvalidOption("batch is the number of a batch of an application: give app too, or leave batch out")


def _publish_once(rows: DataFrame, place: Place) -> None:
    """Under the same name and number the same rows are published once, however often the job runs."""
    counted = Observation()
    _publish(
        rows.observe(counted, F.count(F.lit(1)).alias("messages")),
        place.url,
        place.options.get("app"),
        whole_number(place.options, "batch", most=MOST_NUMBER) or 0,
    )
    place.tell("spooled for the broker", {"messages": counted.get["messages"]})


def _publish(rows: DataFrame, url: str, app: str | None, batch: int | str) -> None:
    writer = rows.write.format("remuda").mode("append")
    if app is not None:
        writer = writer.option("appId", app).option("batchId", batch)
    writer.save(url)


def _no_archive(place: Place, done: str) -> NotFound:
    return NotFound(
        f"there is no archive in the lake {place.lake!r}; nothing was {done}. Check the path, or make one: "
        f"remuda pipeline run archive {shown(place.url)} --lake {place.lake}"
    )


def _once_only(place: Place, job: str) -> None:
    if place.continuous:
        raise InvalidOption(f"{job} runs over what is there and ends; run it again for what came since")


def _choice(place: Place, option: str, *values: str) -> str:
    """The value of an option that has a few; the first by default."""
    value = place.options.get(option, values[0])
    if value not in values:
        raise InvalidOption(f"{option} must be {' or '.join(values)}, not {value!r}")
    return value


def _needed(place: Place, job: str, option: str) -> str:
    try:
        return place.options[option]
    except KeyError:
        raise InvalidOption(f"{job} needs the option {option!r}: --set {option}=…") from None
