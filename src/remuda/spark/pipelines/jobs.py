"""Jobs: the pipelines over a log and a lake, once or for as long as the process runs."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from hashlib import sha256
from typing import Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DateType, DoubleType, LongType, StringType, StructType, TimestampType
from pyspark.sql.utils import is_remote

from remuda.log.spool import MOST_NUMBER
from remuda.model.errors import Conflict, InvalidOption, NotFound
from remuda.model.values.durations import DAY, micros, parse_window
from remuda.model.values.texts import read_name
from remuda.spark.checkpoints import check_checkpoint, is_begun
from remuda.spark.lake.coverage import GAPS, reached_by
from remuda.spark.lake.store import local_side, table_names
from remuda.spark.lake.table import LakeTable, kept_table
from remuda.spark.lake.versions import LOG_COLUMN, Blocks
from remuda.spark.pipelines.archive import (
    archived_events,
    archived_messages,
    events_table,
    lifecycle_table,
    messages_table,
    named,
    utc_date,
)
from remuda.spark.pipelines.corrections import mend, mend_windows
from remuda.spark.pipelines.counting import Counted, gaps_table
from remuda.spark.pipelines.history import history
from remuda.spark.pipelines.index import build as build_index
from remuda.spark.pipelines.index import follow as follow_index
from remuda.spark.pipelines.ingest import messages_of
from remuda.spark.pipelines.metrics import COUNTS, MEASURED, fuller, metrics, spans, window_start
from remuda.spark.pipelines.replay import replayed
from remuda.spark.pipelines.retention import retained
from remuda.spark.pipelines.streaming_queries import (
    Place,
    checkpoint_for,
    checkpoint_of,
    finish,
    follow,
    start,
    told,
    told_as,
    used_alone,
)
from remuda.spark.pipelines.typed import (
    BAD_ROWS,
    add_typed,
    bad_rows_table,
    inferred,
    known_shape,
    shape_of,
    table_name,
    typed_table,
)
from remuda.spark.source.data_source import planned_here
from remuda.spark.source.read_options import ReadOptions, check_names, choice, whole_number
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import shown
from remuda.spark.source.tables import EVENTS, LIFECYCLE, MESSAGES

FILES: Final = "_files"
"""Checkpoints of queries that follow a directory of files instead of the log."""
DEFAULT_WINDOW: Final = "1 minute"
_HISTORY_PARTS: Final = 32
"""Into which tables of an earlier version are partitioned, and remain so."""
_KEYS: Final = 1 << 16
"""Of which the history is in one file, and rewritten if one of them is told of."""
_MANY_FILES: Final = 64
"""Small files of a day and queue that a pipeline which follows the log puts together."""
_FOLLOWING: Final = ("maxRows", "failOnDataLoss")
"""Options of all pipelines that follow the log."""


Job = Callable[[SparkSession, Place], list[StreamingQuery]]
"""Starts a job. One that runs once is done when this returns; for one that keeps running, it returns the queries."""


def archive(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """log → lake, partitioned by date and queue"""

    def begin(table: str, shape: Callable[[DataFrame], DataFrame], target: LakeTable) -> StreamingQuery:
        if not is_begun(checkpoint_of(place.lake, "archive", table, place.log)) and not is_remote():
            _check_sole(target, place, table)

        def add(rows: DataFrame, app: str, batch: int) -> None:
            _check_sole(target, place, table, app)
            seen = Observation()
            counted = Counted(
                spark=rows.sparkSession, place=place, table=table, target=target, app=app, batch=batch,
                checkpoint=checkpoint_of(place.lake, "archive", table, place.log),
            )  # fmt: skip
            target.append(
                named(shape(rows.observe(seen, F.count(F.lit(1)).alias("rows"))), place.log),
                app=app,
                batch=batch,
                marks=lambda files: counted.marks(files, lambda: int(seen.get["rows"])),
            )
            _tend(rows.sparkSession, place, target, gaps_table(place.lake))

        return follow(spark, place, "archive", table, add)

    return finish(
        place,
        partial(begin, MESSAGES, archived_messages, messages_table(place.lake)),
        partial(begin, EVENTS, archived_events, events_table(place.lake)),
    )


def lifecycle(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """events → one row for each message and queue"""
    target = lifecycle_table(place.lake)

    def merge(rows: DataFrame, app: str, batch: int) -> None:
        noted = told(place, "lifecycle", LIFECYCLE, batch)
        lives = named(rows.withColumn("date", utc_date("created")), place.log)
        target.merge(lives, latest, app=app, batch=batch, marks=noted)

    checkpoint = checkpoint_for(place, "lifecycle", LIFECYCLE)  # or lives would be mended from another log
    with used_alone(checkpoint):
        target.note(told(place, "lifecycle", LIFECYCLE))
        mend(spark, place, target, messages_table(place.lake), events_table(place.lake))
    return finish(place, partial(follow, spark, place, "lifecycle", LIFECYCLE, merge))


def latest(old: DataFrame | None, new: DataFrame) -> DataFrame:
    """Lives as they are now: new rows in the place of old ones of the same message and queue."""
    if old is None:
        return new
    names = [name for name in (LOG_COLUMN, "offset", "queue") if name in new.columns]
    same = reduce(Column.__and__, (old[name].eqNullSafe(new[name]) for name in names))
    return old.join(new, same, "left_anti").unionByName(new)


def run_history(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """object and key → last hash and version"""
    target = history_table(place.lake)

    def merge(rows: DataFrame, app: str, batch: int) -> None:
        noted = told(place, "history", MESSAGES, batch)
        known = named(_in_parts(rows), place.log)
        target.merge(known, lambda old, new: _in_parts(history(new, old)), app=app, batch=batch, marks=noted)

    with used_alone(checkpoint_for(place, "history", MESSAGES)):
        target.note(told(place, "history", MESSAGES))
    columns = "offset bigint, created timestamp, object string, key string, digest binary"
    return finish(place, partial(follow, spark, place, "history", MESSAGES, merge, columns))


def _in_parts(rows: DataFrame) -> DataFrame:
    """Rows with what tells where the history of their object and key is."""
    known = rows.where(F.col("digest").isNotNull())
    spread = F.xxhash64("object", "key")
    part = F.pmod(spread, F.lit(_HISTORY_PARTS)).cast("int")
    return known.withColumns({"part": part, "hash": F.shiftrightunsigned(spread, 2)})


def run_metrics(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """rates, waiting and processing times, retries, per queue and window (option window, 1 minute)"""
    window = place.options.get("window", DEFAULT_WINDOW)
    target = metrics_table(place.lake, window)
    job = target.name

    def recount(rows: DataFrame, app: str, batch: int) -> None:
        """Recompute the windows in which changed messages were published, however long ago that was."""
        changed = rows.select(F.unix_micros(window_start(window)).alias("start")).distinct()
        starts = sorted(row["start"] for row in changed.collect())
        spark = rows.sparkSession
        lives = [_published(spark, place.url, *span) for span in spans(starts, window)]
        if not lives:
            return
        dates = sorted({datetime.fromtimestamp(start / 1e6, UTC).date().isoformat() for start in starts})
        windows = named(metrics(reduce(DataFrame.unionByName, lives), window), place.log)
        windows = windows.withColumn("date", utc_date("start"))
        # Spans may reach over days in which nothing changed, and which are not rewritten.
        counted = windows.where(F.col("date").cast("string").isin(dates))
        target.rewrite(
            spark,
            lambda partition: partition["date"] in dates,
            lambda old: fuller(old, counted),
            app=app,
            batch=batch,
            marks=told(place, job, LIFECYCLE, batch),
            within=lambda file: file.may_hold(LOG_COLUMN, place.log),
        )
        target.vacuum()

    with used_alone(checkpoint_for(place, job, LIFECYCLE)):
        target.note(told(place, job, LIFECYCLE))
        mend_windows(spark, place, target, window, partial(_published, spark, place.url))
    return finish(place, partial(follow, spark, place, job, LIFECYCLE, recount, "created timestamp"))


def typed(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """log → a topic as a table with its bodies as columns (options topic, schema, table)"""
    topic = read_name("topic", _needed(place, "typed", "topic"))
    name = table_name(topic, place.options.get("table"), tuple(_TABLES))
    asked = shape_of(spark, place.options["schema"]) if "schema" in place.options else None
    known_shape(place.lake, name, asked)  # or say at once why not

    def add(rows: DataFrame, app: str, batch: int) -> None:
        shape = known_shape(place.lake, name, asked) or inferred(rows)
        if shape is not None:
            target, noted = typed_table(place.lake, name, shape), told(place, f"typed-{name}", MESSAGES, batch)
            _check_sole(target, place, MESSAGES, app)
            add_typed(named(rows, place.log), place.lake, target, app, batch, noted)
            _tend(rows.sparkSession, place, target, bad_rows_table(place.lake))

    return finish(place, partial(follow, spark, place, f"typed-{name}", MESSAGES, add, topic=topic))


def ingest(spark: SparkSession, place: Place) -> list[StreamingQuery]:
    """files → compacter → distributor → queues (options source, format, schema, order, repeats, app, batch)

    The broker applies the same rules when it takes the rows in, and logs unchanged messages as such. With
    `repeats=drop`, repetitions are dropped here, so that the broker does not log them.
    """
    source, order = _needed(place, "ingest", "source"), _needed(place, "ingest", "order")
    kind, drop = place.options.get("format", "parquet"), choice(place.options, "repeats", "keep", "drop") == "drop"
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
    checkpoint = local_side(place.lake) / FILES / sha256(source.encode()).hexdigest()[:16]
    if not is_remote():
        check_checkpoint(checkpoint)
    return [start(stream, "ingest-files", checkpoint, publish, continuous=True)]


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
        removed[table.name] = known - table.row_count(old)
        table.vacuum()
    # One event concerns many messages: events are removed by whole days, when the longest retention is over.
    events = events_table(place.lake)
    over = before(max(success, dead) + DAY)
    removed[events.name] = events.row_count(over)
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

    def apply(rows: DataFrame, app: str, batch: int) -> None:
        follow_index(place.url, where)  # the rows say that there is something new; the log says what

    return [follow(spark, place, "index", LIFECYCLE, apply, "offset bigint")]


def history_table(lake: str) -> LakeTable:
    schema = StructType()
    for name, kind in (
        ("object", "string"), ("key", "string"), ("digest", "binary"), ("version", "long"), ("messages", "long"),
        ("offset", "long"), ("first", "timestamp"), ("last", "timestamp"), ("part", "integer"), ("hash", "long"),
        (LOG_COLUMN, "string"),
    ):  # fmt: skip
        schema = schema.add(name, kind)
    return LakeTable(lake, "history", schema, (), apart=(LOG_COLUMN,), blocks=Blocks("hash", _KEYS, 1 << 62))


def lake_table(lake: str, name: str) -> LakeTable:
    """A table that a pipeline filled; raises `NotFound` where there is none."""
    known = isinstance(name, str)
    other = re.fullmatch(r"metrics-([\d.]+)s", name) if known else None
    if other:
        table: LakeTable | None = metrics_table(lake, f"{other[1]} seconds")
    elif known and name in _TABLES:
        table = _TABLES[name](lake)
    else:
        table = kept_table(lake, name) if known and re.fullmatch(r"\w+", name) else None
    if table is None:
        raise InvalidOption(
            f"there is no table {name!r}; the tables are {', '.join(_TABLES)}, metrics-…s of windows, and typed ones"
        )
    if not table.manifest().version:
        raise NotFound(f"the lake {lake!r} has no table {name!r} yet; run the pipeline that fills it")
    return table


def lake_tables(lake: str) -> list[LakeTable]:
    """All tables of a lake; raises `NotFound` where there are none."""
    names = table_names(lake)
    if not names:
        raise NotFound(f"there is no lake at {lake!r}; nothing was changed. Check the path")
    return [lake_table(lake, name) for name in names]


def metrics_table(lake: str, window: str = DEFAULT_WINDOW) -> LakeTable:
    """The table of windows of one length; that of another has its own."""
    schema = StructType().add("start", TimestampType()).add("queue", StringType())
    for name in COUNTS:
        schema = schema.add(name, LongType())
    for name in ("wait", "processing"):
        for share in (50, 95, 99):
            schema = schema.add(f"{name}_p{share}", DoubleType())
    schema = schema.add("rate", DoubleType()).add(LOG_COLUMN, StringType()).add("date", DateType())
    length = parse_window(window)
    name = "metrics" if length == parse_window(DEFAULT_WINDOW) else f"metrics-{length / 1e6:.15g}s"
    return LakeTable(lake, name, schema, ("date",), apart=(LOG_COLUMN,))


_TABLES: Final[Mapping[str, Callable[[str], LakeTable]]] = {
    MESSAGES: messages_table, EVENTS: events_table, LIFECYCLE: lifecycle_table, "history": history_table,
    "metrics": metrics_table, GAPS: gaps_table, BAD_ROWS: bad_rows_table,
}  # fmt: skip


def checked(job: Job, *known: str) -> Job:
    """A job that refuses options which it does not have."""

    @functools.wraps(job)
    def run(spark: SparkSession, place: Place) -> list[StreamingQuery]:
        if place.log is not None:
            _check_log(place.log, fills=_FOLLOWING[0] in known and job is not index)
        return job(spark, msgspec.structs.replace(place, options=check_names(place.options, known)))

    return run


JOBS: Final[Mapping[str, Job]] = {
    "archive": checked(archive, *_FOLLOWING),
    "lifecycle": checked(lifecycle, *_FOLLOWING),
    "history": checked(run_history, *_FOLLOWING),
    "metrics": checked(run_metrics, "window", *_FOLLOWING),
    "typed": checked(typed, "topic", "schema", "table", *_FOLLOWING),
    "ingest": checked(ingest, "source", "format", "schema", "order", "repeats", "app", "batch"),
    "replay": checked(replay, "where", "to", "app", "batch"),
    "retention": checked(retention, "success", "dead"),
    "index": checked(index, "index", *_FOLLOWING),
}


def _check_log(name: str, *, fills: bool) -> None:
    if not fills:
        raise InvalidOption("a log has a name where its rows come into the lake; leave it out here")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", name):
        raise InvalidOption(f"the name of a log is up to 31 letters, digits, _, . and -, not {name!r}")


def _published(spark: SparkSession, url: str, since: int, until: int) -> DataFrame:
    """Lives of the messages that were published from one time to before another (microseconds)."""
    # What is missing was reported by the stream that led here.
    selection = Selection(since=since, until=until)
    options = ReadOptions(url=url, table=LIFECYCLE, selection=selection, fail_on_loss=False)
    return planned_here(spark, options, MEASURED)


def _shape(files: DataFrameReader, source: str) -> StructType:
    """The columns of files, of which some must be there already."""
    try:
        return files.load(source).schema
    except AnalysisException as error:
        raise InvalidOption(
            f"the columns of the files in {source!r} are not known: {error.getMessage()}. Put a file there, or name "
            "the columns: --set schema='name string, body string'"
        ) from error


def _check_sole(table: LakeTable, place: Place, numbered: str, app: str | None = None) -> None:
    """Rows of a log that are only ever added must all come from one query, or they would be there twice."""
    newest = table.manifest()
    noted = place.log is None or newest.last_batch(reached_by(told_as(place) or "", numbered)) is not None
    if newest.version and noted and (app is None or newest.last_batch(app) is None):
        raise Conflict(
            f"table {table.name!r} was filled by a query whose checkpoint is gone, and would be filled again from "
            "the beginning; nothing was written. Restore the checkpoint, or choose another lake. If the rows are those "
            "of another log, give this one a name: --log"
        )


def _tend(spark: SparkSession, place: Place, *tables: LakeTable) -> None:
    """Put the small files together that a pipeline adds as long as it follows the log."""
    if place.continuous:
        for table in tables:
            with contextlib.suppress(Conflict):  # another job is at it
                table.optimize(spark, fewest=_MANY_FILES)
            table.vacuum()


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


def _needed(place: Place, job: str, option: str) -> str:
    try:
        return place.options[option]
    except KeyError:
        raise InvalidOption(f"{job} needs the option {option!r}: --set {option}=…") from None
