"""P1 on a RabbitMQ stream: the same tables, streams, lives, pipelines and report as from a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import remuda.spark
from remuda import Message
from remuda.amqp.connection import Connection
from remuda.log.streams.numbers import reference
from remuda.log.streams.writer import StreamWriter
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
from remuda.spark.pipelines.jobs import JOBS, Place, history_table, lake_table
from remuda.spark.progress import progress
from remuda.spark.report import Wish, make_report
from tests.log.eventlogs import WrittenStream, now
from tests.spark.test_stream import Collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)  # the first test starts Spark and RabbitMQ
_ENTRIES, _ROWS = 12, 100


@pytest.fixture
def written(broker_url: str) -> Iterator[WrittenStream]:
    made = WrittenStream(broker_url)
    yield made
    made.close()


@pytest.fixture
def url(written: WrittenStream) -> str:
    """A log of 1200 messages in 12 entries; half of them were handled, one of which failed at first."""
    ids = Snowflakes(5)
    for entry in range(_ENTRIES):
        given = ids.take(_ROWS, now())
        put(written.writer, given, entry)
        if entry % 2 == 0:
            settle(written.writer, [str(id) for id in given])
    written.writer.flush()
    return written.url


def put(writer: StreamWriter, ids: range | list[str], entry: int) -> None:
    columns = Messages(
        bodies=[b"%d" % (entry * _ROWS + row) for row in range(len(ids))], name="orders.new", ids=ids, created=now(),
        object="order", key=[str(row % 10) for row in range(len(ids))],
    )  # fmt: skip
    digests: list[bytes | None] = [b"%016d" % (row % 10) for row in range(len(ids))]
    writer.append([Appended(0, now(), columns, ("orders",), digests)])
    writer.flush()  # an entry of its own


def settle(writer: StreamWriter, ids: list[str]) -> None:
    numbers = [reference(id) for id in ids]
    states = [State.FETCHED, State.SUCCESS, State.COMPLETED]
    again = [Event("orders", State.FETCHED, numbers[0], consumer="c", attempt=1)]
    again += [Event("orders", State.RETRY, numbers[0], consumer="c", attempt=1, reason="no stock", due=now())]
    rows = [Event("orders", state, one, consumer="c", attempt=1) for state in states for one in numbers]
    writer.append([Events(0, now(), again), Events(0, now(), rows)])
    writer.flush()


def frame(spark: SparkSession, url: str, table: str = "messages", **options: Any) -> Any:
    return spark.read.format("remuda").option("table", table).options(**options).load(url)


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def test_p1_both_tables_are_read_in_parallel(spark: SparkSession, url: str) -> None:
    messages = frame(spark, url, rowsPerPartition=300)
    assert messages.rdd.getNumPartitions() > 2
    assert numbers(messages.collect()) == list(range(_ENTRIES * _ROWS))
    events = frame(spark, url, "events", rowsPerPartition=200)
    assert events.rdd.getNumPartitions() > 2
    found = events.collect()
    assert len(found) == _ENTRIES // 2 * (3 * _ROWS + 2)
    offsets = {row["offset"] for row in messages.collect()}
    assert {row["first"] for row in found} <= offsets
    assert len({row["first"] for row in found}) == _ENTRIES // 2 * _ROWS


def test_p1_what_is_not_wanted_is_left_out(spark: SparkSession, url: str) -> None:
    offsets = sorted(row["offset"] for row in frame(spark, url).select("offset").collect())
    some = frame(spark, url, fromOffset=offsets[150], toOffset=offsets[260])
    assert numbers(some.collect()) == list(range(150, 260))
    assert frame(spark, url, queues="other").count() == 0
    assert frame(spark, url, "events", states="R").count() == _ENTRIES // 2
    assert frame(spark, url, since=now() + 10**9).count() == 0
    assert frame(spark, url, since=0, until=now() + 10**9).count() == _ENTRIES * _ROWS


def test_p1_lives_are_those_that_the_log_tells(spark: SparkSession, url: str) -> None:
    by_source = frame(spark, url, "lifecycle", rowsPerPartition=300)
    lives = by_source.collect()
    assert len(lives) == _ENTRIES * _ROWS
    states = {state: sum(row["state"] == state for row in lives) for state in ("X", "Q")}
    assert states == {"X": _ENTRIES // 2 * _ROWS, "Q": _ENTRIES // 2 * _ROWS}
    assert sum(row["attempts"] == 1 for row in lives) == _ENTRIES // 2 * _ROWS
    native = remuda.spark.read(spark, url, "lifecycle").collect()
    assert {(row["offset"], row["state"]) for row in native} == {(row["offset"], row["state"]) for row in lives}


@pytest.mark.parametrize("table", ["messages", "events"])
def test_p1_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, written: WrittenStream, url: str, tmp_path: Path, table: str
) -> None:
    column = "offset" if table == "messages" else "position"
    first = Collector(spark, url, tmp_path / "checkpoint", table=table, maxRowsPerTrigger=250)
    first.run()
    rows = _ENTRIES * _ROWS if table == "messages" else _ENTRIES // 2 * (3 * _ROWS + 2)
    sizes = [len(first.batches[number]) for number in sorted(first.batches)]
    assert sum(sizes) == rows
    assert all(size <= 250 for size in sizes)
    ids = written.publish([Message("orders.new", b"9999")])
    settle(written.writer, ids)
    second = Collector(spark, url, tmp_path / "checkpoint", table=table, maxRowsPerTrigger=250)
    second.run()
    read = first.column(column) + second.column(column)
    assert len(second.column(column)) == (1 if table == "messages" else 5)
    assert len(set(read)) == len(read) == rows + len(second.column(column))
    whole = [row[column] for row in frame(spark, url, table).collect()]
    assert sorted(read) == sorted(whole)


def test_p1_another_stream_of_the_name_is_not_taken_for_it(
    spark: SparkSession, written: WrittenStream, url: str, broker_url: str, tmp_path: Path
) -> None:
    collector = Collector(spark, url, tmp_path / "checkpoint")
    collector.run()
    with Connection(broker_url) as connection:
        connection.channel().delete_queue(written.writer.stream)
    with StreamWriter(url) as writer:
        for entry in range(30):
            put(writer, [f"new-{entry}"], entry)
    with pytest.raises(StreamingQueryException, match="not the log that this query has read"):
        collector.run()


def test_p3_the_pipelines_run_on_a_stream(
    spark: SparkSession, written: WrittenStream, url: str, tmp_path: Path
) -> None:
    place = Place(url=url, lake=str(tmp_path / "lake"))
    for job in ("archive", "lifecycle", "history", "metrics"):
        JOBS[job](spark, place)
    lake = str(tmp_path / "lake")
    assert lake_table(lake, "messages").read(spark).count() == _ENTRIES * _ROWS
    assert lake_table(lake, "events").read(spark).count() == _ENTRIES // 2 * (3 * _ROWS + 2)
    lives = lake_table(lake, "lifecycle").read(spark)
    assert lives.where("state = 'X'").count() == _ENTRIES // 2 * _ROWS
    known = {row["key"]: row["version"] for row in history_table(lake).read(spark).collect()}
    assert len(known) == 10
    metrics = lake_table(lake, "metrics").read(spark).collect()
    assert sum(row["published"] for row in metrics) == _ENTRIES * _ROWS
    settle(written.writer, written.publish([Message("orders.new", b"one more")]))
    JOBS["lifecycle"](spark, place)
    assert lake_table(lake, "lifecycle").read(spark).where("state = 'X'").count() == _ENTRIES // 2 * _ROWS + 1
    told = {row["pipeline"]: row["behind"] for row in progress(url, lake)}
    assert told["lifecycle-lifecycle"] == 0
    assert told["archive-messages"] > 0


def test_p3_a_report_is_made_of_a_stream(spark: SparkSession, url: str) -> None:
    report = make_report(Wish(url=url))
    assert report.messages == _ENTRIES * _ROWS
    assert [queue.name for queue in report.queues] == ["orders"]
    assert "guest:guest" not in report.source


def test_p2_a_sink_needs_a_directory_and_says_so(spark: SparkSession, url: str) -> None:
    rows = spark.createDataFrame([("orders", "hello")], "name string, body string")
    with pytest.raises(PySparkException, match="is not a directory") as refused:
        rows.write.format("remuda").mode("append").save(url)
    assert "guest:guest" not in str(refused.value)
