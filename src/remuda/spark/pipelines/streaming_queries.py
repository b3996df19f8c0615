"""Following: queries over the log, each with a checkpoint in the lake that one run uses at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from remuda.spark.checkpoints import check_checkpoint, last_batch, offsets, sole_use
from remuda.spark.lake.coverage import HOLDS_NOTHING
from remuda.spark.lake.store import local_side, of_log
from remuda.spark.lake.versions import StreamBatch
from remuda.spark.session.starting import add_source
from remuda.spark.sink import query_id
from remuda.spark.source.read_options import truth, whole_number
from remuda.spark.source.spark_log import kept_log, open_log
from remuda.spark.source.stream_reader import check_log
from remuda.spark.source.tables import LIFECYCLE, NUMBER

CHECKPOINTS: Final = "_checkpoints"
_STARTS: Final = 4
_TOO_BUSY: Final = "Python worker failed to connect back"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job reads and writes, and how it runs."""

    url: str
    lake: str
    continuous: bool = False
    """Follow the log until stopped, instead of reading what is there and ending."""
    options: Mapping[str, str] = {}
    log: str | None = None
    """The name of the log, in a lake of several."""
    tell: Callable[[str, Mapping[str, int]], None] = lambda deed, counts: None
    """Called by a job that runs once: what it did, in a word or two, and how many of what."""


Take = Callable[[DataFrame, str, int], None]
"""Handles a micro-batch: its rows, the id of its query, and its number."""


def checkpoint_of(lake: str, job: str, table: str, log: str | None = None) -> Path:
    return local_side(lake) / CHECKPOINTS / of_log(f"{job}-{table}", log)


def follow(
    spark: SparkSession,
    place: Place,
    job: str,
    table: str,
    take: Take,
    columns: str | None = None,
    topic: str | None = None,
) -> StreamingQuery:
    if is_remote():
        add_source(spark)  # one for each stream, since in the server they must not share one (see there)
    stream = spark.readStream.format("remuda").option("table", table)
    if topic is not None:
        stream = stream.option("topics", msgspec.json.encode([topic]).decode())
    if columns is not None:
        stream = stream.schema(columns)
    if (rows := whole_number(place.options, "maxRows", least=1)) is not None:
        stream = stream.option("maxRowsPerTrigger", rows)
    stream = stream.option("failOnDataLoss", truth(place.options, "failOnDataLoss", default=True))
    checkpoint = checkpoint_for(place, job, table)
    return start(stream.load(place.url), f"{job}-{table}", checkpoint, take, continuous=place.continuous)


def told(place: Place, job: str, table: str, batch: int | None = None) -> tuple[StreamBatch, ...]:
    """What a table notes with a batch, or before the first: how far it is told of the log. The collector waits for it,
    unless rows may be missing."""
    identity = told_as(place)
    if identity is None:
        return ()
    names = ("offset", "position") if table == LIFECYCLE else (NUMBER[table],)
    done = checkpoint_of(place.lake, job, table, place.log)
    end = dict.fromkeys(names, 0) if batch is None else offsets(done, batch)
    strict = truth(place.options, "failOnDataLoss", default=True)
    return tuple(StreamBatch(f"{identity}.{name}", end[name] if strict else HOLDS_NOTHING) for name in names)


def told_as(place: Place) -> str | None:
    """Under which name tables note how far they are told of a log; None of a stream that was given none."""
    return kept_log(place.url).identity or (None if place.log is None else f"log.{place.log}")


def checkpoint_for(place: Place, job: str, table: str) -> Path:
    """The checkpoint of a job, if it is one and of this log."""
    open_log(place.url)  # or say what is wrong with it, before anything is made in the lake
    checkpoint = checkpoint_of(place.lake, job, table, place.log)
    if not is_remote():  # else it is the server's to look at
        check_checkpoint(checkpoint)
        if (done := last_batch(checkpoint)) is not None:
            check_log(place.url, table, offsets(checkpoint, done))
    return checkpoint


def start(stream: DataFrame, name: str, checkpoint: Path, take: Take, *, continuous: bool) -> StreamingQuery:
    def each(rows: DataFrame, batch: int) -> None:
        # Spark counts batches from 0 again in a new checkpoint: its id distinguishes them from those of an older one.
        take(rows, query_id(place), batch)

    place = str(checkpoint)
    writer = stream.writeStream.queryName(name).foreachBatch(each).option("checkpointLocation", place)
    with contextlib.ExitStack() as uses:
        uses.enter_context(used_alone(checkpoint))
        query = (writer if continuous else writer.trigger(availableNow=True)).start()
        until_end = uses.pop_all()
    threading.Thread(target=_end_with, args=(query, until_end), name=f"{name}-end", daemon=True).start()
    return query


def used_alone(checkpoint: Path) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if is_remote() else sole_use(checkpoint)  # a remote one is the server's to lock


def _end_with(query: StreamingQuery, uses: contextlib.ExitStack) -> None:
    """Release a checkpoint once its query has ended. How it ended is for the caller that started it to find out."""
    with uses, contextlib.suppress(Exception):
        query.awaitTermination()


def finish(place: Place, *begins: Callable[[], StreamingQuery]) -> list[StreamingQuery]:
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
