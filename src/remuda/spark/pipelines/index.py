"""Index: the whole log into a search index at once, with the words of bodies found on all cores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from remuda.index import Follower, LogSource, Reached, SearchIndex, open_index
from remuda.index.copies import CONSUMPTIONS, Copy
from remuda.index.opening import default_place
from remuda.index.port import Document
from remuda.index.text import text_of
from remuda.log.disk import DirectoryDisk
from remuda.model.life import Consumption, Life
from remuda.model.state import State
from remuda.spark.source.spark_log import directory
from remuda.spark.source.tables import LIFECYCLE, MESSAGES

_DOCUMENT: Final = (
    "offset bigint, created bigint, id string, name string, topics array<string>, object string, key string, "
    "timestamp bigint, mime_type string, size bigint, text string"
)
_MESSAGE: Final = ("offset", "created", "id", "name", "topics", "object", "key", "timestamp", "mime_type", "body")
_TIMES: Final = ("modified", "consumed", "processed", "completed", "failed")
_COPY: Final = (
    "queue", "position", "state", *_TIMES, "attempts", "confirmed_count", "duration", "reason", "moved_to", "delivered",
    "consumed_by",
)  # fmt: skip


def documents(messages: DataFrame, lives: DataFrame) -> DataFrame:
    """What an index is given: a row for each message, with its words and the states of its copies."""
    texts = messages.withColumns({name: F.unix_micros(name) for name in ("created", "timestamp")}).select(*_MESSAGE)
    texts = texts.mapInArrow(_with_words, _DOCUMENT)
    copies = (
        lives.withColumns({name: F.unix_micros(name) for name in _TIMES})
        .withColumn("queue", F.coalesce("queue", F.lit("")))
        .withColumn("consumed_by", F.transform("consumed_by", _consumption))
        .groupBy("offset")
        .agg(F.sort_array(F.collect_list(F.struct(*_COPY))).alias("copies"))
    )
    return texts.join(copies, "offset")


def build(spark: SparkSession, url: str, place: str | None) -> None:
    """Rebuild the index of a log; the old one answers until the new one is complete."""
    where = default_place(directory(url)) if place is None else place
    log = LogSource(DirectoryDisk.of_log(directory(url)))
    index = open_index(where)
    try:
        # Lives may include events after this point; applying those again changes nothing.
        offset, position = log.end()
        index.begin(Reached())
        if offset:
            messages = _table(spark, url, MESSAGES).where(F.col("offset") < offset)
            lives = _table(spark, url, LIFECYCLE).where(F.col("offset") < offset)
            _load(documents(messages, lives), index, where)
        index.apply([], [], Reached(), Reached(offset, position, time.time_ns() // 1000))
        index.finish()
        catch_up(index, log)
    finally:
        index.close()


def follow(url: str, place: str | None) -> None:
    """Apply what the log holds beyond the index."""
    where = default_place(directory(url)) if place is None else place
    index = open_index(where)
    try:
        catch_up(index, LogSource(DirectoryDisk.of_log(directory(url))))
    finally:
        index.close()


def catch_up(index: SearchIndex, log: LogSource) -> None:
    follower = Follower(index, log)
    follower.catch_up()
    follower.forget_collected()


def _load(rows: DataFrame, index: SearchIndex, place: str) -> None:
    if "://" not in place or place.startswith("file:"):
        # SQLite has one writer: here. In order, since that is how it is written fastest.
        index.load(_document(row) for row in rows.orderBy("offset").toLocalIterator(prefetchPartitions=True))
        return

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own = open_index(place)
        try:
            for batch in batches:
                own.load(_document(row) for row in batch.to_pylist())
                yield pa.RecordBatch.from_pydict({"sent": pa.array([batch.num_rows], pa.int64())})
        finally:
            own.close()

    rows.mapInArrow(send, "sent bigint").agg(F.sum("sent")).collect()


def _table(spark: SparkSession, url: str, table: str) -> DataFrame:
    return spark.read.format("remuda").option("table", table).load(url)


def _with_words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        bodies, kinds = batch.column("body").to_pylist(), batch.column("mime_type").to_pylist()
        texts = [text_of(body, kind) for body, kind in zip(bodies, kinds, strict=True)]
        columns = {name: batch.column(name) for name in _MESSAGE[:-1]}
        sizes = pa.array(map(len, bodies), pa.int64())
        yield pa.RecordBatch.from_pydict({**columns, "size": sizes, "text": pa.array(texts, pa.string())})


def _consumption(one: Column) -> Column:
    times = (F.unix_micros(one[name]).alias(name) for name in ("fetched", "confirmed"))
    return F.struct(one["consumer"], *times, one["duration"])


def _document(row: Any) -> Document:
    return Document(
        row["offset"], row["created"], row["id"], row["name"], tuple(row["topics"] or ()), row["object"], row["key"],
        row["timestamp"], row["mime_type"], row["size"], row["text"],
        [(one["queue"], _copy(one)) for one in row["copies"]],
    )  # fmt: skip


def _copy(row: Any) -> Copy:
    own = {name: row[name] for name in _COPY if name not in ("queue", "position", "state", "consumed_by")}
    own |= {"attempts": row["attempts"] or 0, "confirmed_count": row["confirmed_count"] or 0}
    life = Life(State(row["state"]), **own)
    life.consumed_by = [
        Consumption(one["consumer"], one["fetched"], one["confirmed"], one["duration"])
        for one in (row["consumed_by"] or ())[-CONSUMPTIONS:]
    ]
    return Copy(life, -1 if row["position"] is None else row["position"])
