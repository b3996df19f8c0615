"""P1 on a RabbitMQ stream: the same tables, queries, lives, pipelines and report as from a directory."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

import remuda.spark
from remuda import Message
from remuda.amqp.client.connection import Connection
from remuda.log.streams.stream_log import StreamLog
from remuda.log.streams.stream_numbers import reference
from remuda.log.streams.stream_writer import Retention, StreamWriter
from remuda.model.document import document
from remuda.model.errors import Conflict, DataLost, InvalidOption
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State
from remuda.report import ReportRequest, make_report
from remuda.spark.pipelines.jobs import JOBS, history_table, lake_table
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.progress import progress
from remuda.spark.sink import BatchSink
from remuda.spark.source.data_source import LogReader, table_schema
from remuda.spark.source.read_options import ReadOptions
from remuda.spark.source.stream_reader import LogStream
from tests.log.eventlogs import WrittenStream, now

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # the first test starts Spark and RabbitMQ
_ENTRIES, _ROWS = 8, 100


@pytest.fixture
def written(broker_url: str) -> Iterator[WrittenStream]:
    made = WrittenStream(broker_url)
    yield made
    made.close()


@pytest.fixture
def url(written: WrittenStream) -> str:
    """A log of 800 messages in 8 entries; half of them were handled, one of which failed at first."""
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


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def read(url: str, table: str = "messages", **options: object) -> tuple[list[dict[str, Any]], int]:
    """The rows that Spark's tasks would give, and how many tasks there are."""
    asked = ReadOptions.parse({"path": url, "table": table, **{name: str(value) for name, value in options.items()}})
    reader = LogReader(asked, table_schema(table))
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()], len(parts)


class Query:
    """What Spark does with a stream: it asks how far to go, reads up to there, and keeps the place."""

    def __init__(self, url: str, table: str, **options: object) -> None:
        texts = {name: str(value) for name, value in options.items()}
        self._options = ReadOptions.parse({"path": url, "table": table, **texts})
        self._table = table
        self.at: dict[str, Any] | None = None

    @property
    def at_offset(self) -> int:
        assert self.at is not None
        return int(self.at["offset"])

    def run(self) -> list[list[dict[str, Any]]]:
        """Micro-batches up to the end, by a reader that knows nothing but the place."""
        stream = LogStream(self._options, table_schema(self._table))
        start = json.loads(json.dumps(stream.initialOffset())) if self.at is None else self.at
        batches = []
        while (end := json.loads(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))) != start:
            parts = stream.partitions(start, end)
            batches.append([row for part in parts for batch in stream.read(part) for row in batch.to_pylist()])
            start = end
        self.at = start
        return batches


def test_p1_both_tables_are_read_in_parallel(url: str) -> None:
    messages, tasks = read(url, rowsPerPartition=300)
    assert tasks > 2
    assert numbers(messages) == list(range(_ENTRIES * _ROWS))
    events, tasks = read(url, "events", rowsPerPartition=200)
    assert tasks > 2
    assert len(events) == _ENTRIES // 2 * (3 * _ROWS + 2)
    told = {row["first"] for row in events}
    assert told <= {row["offset"] for row in messages}
    assert len(told) == _ENTRIES // 2 * _ROWS
    assert read(url)[1] == 1


def test_p1_what_is_not_wanted_is_left_out(url: str) -> None:
    offsets = sorted(row["offset"] for row in read(url)[0])
    assert numbers(read(url, fromOffset=offsets[150], toOffset=offsets[260])[0]) == list(range(150, 260))
    assert read(url, queues="other")[0] == []
    assert len(read(url, "events", states="R")[0]) == _ENTRIES // 2
    assert read(url, since=now() + 10**9)[0] == []
    assert len(read(url, since=0, until=now() + 10**9)[0]) == _ENTRIES * _ROWS


def test_p1_lives_are_those_that_the_log_tells(url: str) -> None:
    lives, tasks = read(url, "lifecycle", rowsPerPartition=300)
    assert tasks > 2
    assert len(lives) == _ENTRIES * _ROWS
    states = Counter(row["state"] for row in lives)
    assert states == {"X": _ENTRIES // 2 * _ROWS, "Q": _ENTRIES // 2 * _ROWS}
    log = StreamLog(url)
    for row in (lives[0], lives[1], lives[_ROWS], lives[-1]):
        found = log.message(row["offset"])
        assert found is not None
        told = document(row["offset"], *found, log.events_of(row["offset"])).queues[0]
        assert (row["state"], row["attempts"], row["success"]) == (told.state.value, told.attempts, told.success)
    log.close()


@pytest.mark.parametrize("table", ["messages", "events", "lifecycle"])
def test_p1_a_query_goes_on_exactly_where_it_was(written: WrittenStream, url: str, table: str) -> None:
    key = "position" if table == "events" else "offset"
    query = Query(url, table, maxRowsPerTrigger=250)
    first = query.run()
    rows = _ENTRIES // 2 * (3 * _ROWS + 2) if table == "events" else _ENTRIES * _ROWS
    if table != "lifecycle":  # which tells those anew that changed
        assert sum(map(len, first)) == rows
        assert all(len(batch) <= 250 for batch in first)
    assert query.run() == []
    settle(written.writer, written.publish([Message("orders.new", b"9999")]))
    second = [row for batch in query.run() for row in batch]
    read_so_far = [row[key] for batch in first for row in batch] + [row[key] for row in second]
    assert set(read_so_far) == {row[key] for row in read(url, table)[0]}
    assert len({row[key] for row in second}) == (5 if table == "events" else 1)
    if table == "lifecycle":
        assert {row["queue"]: row["state"] for row in second} == {"q": "Q", "orders": "X"}
    else:
        assert len(set(read_so_far)) == len(read_so_far)


def test_p1_bytes_limit_a_micro_batch_too(url: str) -> None:
    batches = Query(url, "messages", maxBytesPerTrigger=20_000).run()
    assert len(batches) > 2
    assert numbers([row for batch in batches for row in batch]) == list(range(_ENTRIES * _ROWS))


def test_p1_another_stream_of_the_name_is_not_taken_for_it(written: WrittenStream, url: str, broker_url: str) -> None:
    query = Query(url, "messages")
    query.run()
    with Connection(broker_url) as connection:
        connection.channel().delete_queue(written.writer.stream)
    with StreamWriter(url) as writer:
        put(writer, ["new"], 0)
        with pytest.raises(Conflict, match="not the log that this query has read"):
            query.run()
        for entry in range(40):
            put(writer, [f"new-{entry}"], entry)
    with pytest.raises(Conflict, match="not the log that this query has read") as refused:
        query.run()
    assert "guest:guest" not in str(refused.value)
    assert len(read(url)[0]) == 41


def test_p6_what_the_broker_let_go_stops_a_query_or_is_counted(broker_url: str) -> None:
    url = f"{broker_url}?log=log-{uuid.uuid4().hex[:8]}"
    retention = Retention(max_bytes=200_000, segment_bytes=50_000)
    with StreamWriter(url, retention=retention) as writer:
        put(writer, ["first"], 0)
        query = Query(url, "messages", maxRowsPerTrigger=1)
        tolerant = Query(url, "messages", failOnDataLoss=False)
        assert [len(batch) for batch in (*query.run(), *tolerant.run())] == [1, 1]
        log = StreamLog(url)
        deadline = time.monotonic() + 60
        while log.ends().first_offset <= query.at_offset and time.monotonic() < deadline:
            columns = Messages(bodies=[b"x" * 20_000], name="q", ids=[uuid.uuid4().hex], created=now())
            writer.append([Appended(0, now(), columns, ("q",))])
            writer.flush()
        with pytest.raises(DataLost, match="collected before they were read"):
            query.run()
        assert sum(map(len, tolerant.run())) > 0
        assert tolerant.at is not None
        assert tolerant.at["missing"] > 0
        log.close()
    with Connection(broker_url) as connection:
        connection.channel().delete_queue(writer.stream)


def test_p2_a_sink_needs_a_directory_and_says_so(url: str) -> None:
    with pytest.raises(InvalidOption, match="is not a directory") as refused:
        BatchSink({"path": url}, StructType().add("name", "string").add("body", "string"), False)
    assert "guest:guest" not in str(refused.value)


def run(spark: SparkSession, job: str, place: Place) -> None:
    """Run a job, again where Spark's Python did not start within the 10 seconds that Spark waits for it."""
    for attempt in range(5):
        try:
            JOBS[job](spark, place)
            return
        except PySparkException as error:
            if "failed to connect back" not in str(error) or attempt == 4:
                raise
            for query in spark.streams.active:
                query.stop()


def test_p1_p3_spark_reads_follows_and_runs_the_pipelines(
    spark: SparkSession, written: WrittenStream, url: str, tmp_path: Path
) -> None:
    """All of it once by Spark itself."""
    frame = spark.read.format("remuda").load(url)
    assert frame.agg(F.count("*"), F.countDistinct("offset")).first() == (_ENTRIES * _ROWS, _ENTRIES * _ROWS)
    lives = remuda.spark.read(spark, url, "lifecycle")
    counts = {row["state"]: row["count"] for row in lives.groupBy("state").count().collect()}
    assert counts == {"X": _ENTRIES // 2 * _ROWS, "Q": _ENTRIES // 2 * _ROWS}
    lake = str(tmp_path / "lake")
    place = Place(url=url, lake=lake)
    for job in ("archive", "history", "metrics"):
        run(spark, job, place)
    assert lake_table(lake, "messages").read(spark).count() == _ENTRIES * _ROWS
    assert lake_table(lake, "events").read(spark).count() == _ENTRIES // 2 * (3 * _ROWS + 2)
    assert history_table(lake).read(spark).count() == 10
    metrics = lake_table(lake, "metrics").read(spark).collect()
    assert sum(row["published"] for row in metrics) == _ENTRIES * _ROWS
    settle(written.writer, written.publish([Message("orders.new", b"one more")]))
    told = {row["pipeline"]: row["behind"] for row in progress(url, lake)}
    assert told["archive-messages"] > 0
    run(spark, "archive", place)
    assert lake_table(lake, "messages").read(spark).count() == _ENTRIES * _ROWS + 1
    report = make_report(ReportRequest(url=url))
    assert report.messages == _ENTRIES * _ROWS + 1
    assert report.queues[0].name in ("orders", "q")
    assert "guest:guest" not in report.source
