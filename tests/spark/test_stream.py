"""P1: following a log by exact numbers. What a checkpoint says was read is neither read again nor left out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.samples import broker_at, half_sealed, load, plain, play, publish, seal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Collector:
    """Keeps each micro-batch under its number, as an exactly-once sink would."""

    def __init__(self, spark: SparkSession, path: Path | str, checkpoint: Path, **options: Any) -> None:
        self._spark, self._path, self._checkpoint = spark, path, checkpoint
        self._options = options
        self.batches: dict[int, list[Any]] = {}
        self.before: Callable[[int], None] = lambda number: None
        self.after: Callable[[int], None] = lambda number: None

    def run(self) -> StreamingQuery:
        """Read all there is, in micro-batches."""
        stream = self._spark.readStream.format("remuda").options(**self._options).load(str(self._path))
        writer = stream.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        query.awaitTermination()
        return query

    def column(self, name: str) -> list[Any]:
        return [row[name] for number in sorted(self.batches) for row in self.batches[number]]

    def _take(self, frame: DataFrame, number: int) -> None:
        self.before(number)
        self.batches[number] = frame.collect()
        self.after(number)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    half_sealed(tmp_path / "data", 600)
    return tmp_path / "data"


@pytest.fixture
def collector(spark: SparkSession, log: Path, tmp_path: Path) -> Collector:
    return Collector(spark, log, tmp_path / "checkpoint", maxRowsPerTrigger=400)


class FirstRun(msgspec.Struct, frozen=True):
    """A log and a query that has read all of it, for others to go on from."""

    folder: Path
    batches: dict[int, list[Any]]
    progress: list[Any]


@pytest.fixture(scope="module")
def first_run(one_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    folder = tmp_path_factory.mktemp("first")
    half_sealed(folder / "data", 600)
    collector = Collector(one_spark, folder / "data", folder / "checkpoint", maxRowsPerTrigger=400)
    query = collector.run()
    return FirstRun(folder, collector.batches, list(query.recentProgress))


@pytest.fixture
def ran(spark: SparkSession, first_run: FirstRun, tmp_path: Path) -> Collector:
    """As if it had run here."""
    shutil.copytree(first_run.folder, tmp_path, dirs_exist_ok=True)
    collector = Collector(spark, tmp_path / "data", tmp_path / "checkpoint", maxRowsPerTrigger=400)
    collector.batches.update(first_run.batches)
    return collector


def test_a_limit_parts_what_is_there_into_micro_batches(first_run: FirstRun) -> None:
    assert {number: len(rows) for number, rows in first_run.batches.items()} == {0: 400, 1: 300}
    offsets = [row["offset"] for rows in first_run.batches.values() for row in rows]
    assert sorted(offsets) == list(range(700))


def test_progress_tells_how_far_behind_it_is(first_run: FirstRun) -> None:
    source = first_run.progress[0]["sources"][0]
    assert json.loads(source["endOffset"])["offset"] == 400
    assert json.loads(source["latestOffset"])["offset"] == 700


def test_a_second_run_reads_only_what_came_since(ran: Collector, tmp_path: Path) -> None:
    collector, log = ran, tmp_path / "data"
    collector.run()
    assert len(collector.batches) == 2
    with broker_at(log) as broker:
        publish(broker, 70)
        seal(broker)
        publish(broker, 30)
    collector.run()
    assert sorted(collector.column("offset")) == list(range(800))


@pytest.mark.parametrize("phase", ["offsets", "commits", "both"])
def test_a_query_that_died_at_any_phase_goes_on_exactly(ran: Collector, tmp_path: Path, phase: str) -> None:
    """Its files are taken back to how they are after the batch was planned, done, or neither."""
    collector, log = ran, tmp_path / "data"
    last = len(collector.batches) - 1
    folders = {"offsets": ["offsets", "commits"], "commits": ["commits"], "both": ["offsets", "commits"]}[phase]
    for folder in folders:
        (tmp_path / "checkpoint" / folder / str(last)).unlink()
        (tmp_path / "checkpoint" / folder / f".{last}.crc").unlink(missing_ok=True)
    if phase == "both":
        del collector.batches[last]
    with broker_at(log) as broker:
        publish(broker, 50)
        seal(broker)
    replayed: list[int] = []
    collector.before = replayed.append
    collector.run()
    assert replayed[0] == last
    assert sorted(collector.column("offset")) == list(range(750))
    if phase == "commits":
        assert len(collector.batches[last]) == 300, "a batch that was planned is read again as it was planned"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_batch_whose_sink_fails_is_read_again(collector: Collector, moment: str) -> None:
    failed: list[int] = []

    def fail(number: int) -> None:
        if number == 1 and not failed:
            failed.append(number)
            raise RuntimeError("the sink is down")

    setattr(collector, moment, fail)
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        collector.run()
    collector.run()
    assert sorted(collector.column("offset")) == list(range(700))


def test_segments_may_be_sealed_and_shrunk_between_micro_batches(
    spark: SparkSession, tmp_path: Path, log: Path
) -> None:
    """L6, P6: what was collected meanwhile is counted as missing, all else comes once."""
    collector = Collector(spark, log, tmp_path / "checkpoint", maxRowsPerTrigger=400, failOnDataLoss=False)
    with broker_at(log, success_retention="1ms") as broker:
        publish(broker, 500, "keep", start=700)

        def shrink(number: int) -> None:
            if number == 0:
                subscription = broker.subscribe("orders", batch=5000)
                delivery = subscription.receive(60)
                assert delivery is not None
                delivery.ack()
                subscription.close()
                broker.collect()

        collector.after = shrink
        query = collector.run()
    found = collector.column("offset")
    assert len(found) == len(set(found))
    assert set(range(400)) <= set(found)
    assert set(range(700, 1200)) <= set(found)
    assert query.lastProgress is not None
    assert json.loads(query.lastProgress["sources"][0]["endOffset"])["missing"] == 1200 - len(found) > 0


def test_it_follows_a_log_that_grows(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    found: list[int] = []
    stream = spark.readStream.format("remuda").load(str(log))
    writer = stream.writeStream.foreachBatch(lambda frame, number: found.extend(row.offset for row in frame.collect()))
    query = writer.trigger(processingTime="0 seconds").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        with broker_at(log) as broker:
            for turn in range(2):
                publish(broker, 100)
                query.processAllAvailable()
                assert sorted(found) == list(range(700 + 100 * (turn + 1)))
    finally:
        query.stop()


def test_it_begins_and_ends_where_it_is_told(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    collector = Collector(spark, log, tmp_path / "checkpoint", fromOffset=100, toOffset=150)
    collector.run()
    assert sorted(collector.column("offset")) == list(range(100, 150))


@pytest.mark.usefixtures("ran")
def test_a_checkpoint_of_another_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path / "other") as broker:
        publish(broker, 10)
    other = Collector(spark, tmp_path / "other", tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="it is not the log that this query has read"):
        other.run()


def test_events_are_followed_by_position(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path / "data") as broker:
        play(broker)
    collector = Collector(spark, tmp_path / "data", tmp_path / "c", table="events", maxRowsPerTrigger=10)
    collector.run()
    expected = [row["position"] for row in load(spark, tmp_path / "data", "events").collect()]
    assert sorted(collector.column("position")) == sorted(expected)
    assert len(collector.batches) > 1


def test_m7_lives_that_change_come_anew(spark: SparkSession, tmp_path: Path) -> None:
    """The last row of each message and queue is the one that a batch read gives."""
    with broker_at(tmp_path / "data") as broker:
        play(broker)
        collector = Collector(spark, tmp_path / "data", tmp_path / "c", table="lifecycle", maxRowsPerTrigger=60)
        collector.run()
        first = sum(map(len, collector.batches.values()))
        delivery = broker.pull("orders", 2, consumer="late")
        assert delivery is not None
        delivery.ack()
        broker.runtime.sync()
        collector.run()
        assert sum(map(len, collector.batches.values())) == first + 2
        latest = {}
        for number in sorted(collector.batches):
            latest.update({(row["offset"], row["queue"]): row for row in collector.batches[number]})
        expected = load(spark, tmp_path / "data", "lifecycle")
        assert plain(spark.createDataFrame(list(latest.values()), expected.schema)) == plain(expected)


def test_p1_streams_add_nothing_to_the_map_that_they_share(spark: SparkSession, collector: Collector) -> None:
    """Spark lets each stream that starts write into the environment of its source. Two that add a key at once leave a
    map of which Java cannot read what it wrote."""
    source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("remuda").dataSourceCls()
    before = set(source.envVars().keySet())
    collector.run()
    assert set(source.envVars().keySet()) == before
