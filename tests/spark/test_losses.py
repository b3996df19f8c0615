"""P1, P6, L3: what is missing from a log stops a query, or is counted and said; and how much of a log a query takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from remuda.log.disk import Disk
from remuda.log.readers.segment_view import Lister, Listing
from remuda.log.sealed.parquet import SealedParquet
from remuda.model.errors import DataLost, InvalidOption
from remuda.report import ReportRequest, make_report
from remuda.spark import read
from remuda.spark.source.data_source import ReadPartition, table_schema
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.losses import Gap, collected, losses, subtracted
from remuda.spark.source.read_options import ReadOptions
from remuda.spark.source.stream_reader import LogStream
from tests.spark.samples import broker_at, finish, half_sealed, load, publish, seal
from tests.spark.test_never_wrong import expire
from tests.spark.test_stream import Collector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def damage(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 255
    file.write_bytes(data)


def test_what_a_range_lacks() -> None:
    assert subtracted(range(10), []) == [range(10)]
    assert subtracted(range(2, 10), [range(4), range(3, 5), range(7, 20)]) == [range(5, 7)]
    assert subtracted(range(4), [range(4)]) == []


def test_what_was_collected_before_a_query_began_is_no_loss() -> None:
    gaps = [Gap(0, 5, False), Gap(5, 6, True), Gap(8, 12, False)]
    assert losses(gaps, None) == [Gap(5, 6, True)]
    assert losses(gaps, [range(1, 3), range(10)]) == [Gap(0, 1, False), Gap(5, 6, True), Gap(10, 12, False)]
    assert losses(gaps, []) == gaps


def test_what_was_collected_before_is_kept_in_a_few_ranges() -> None:
    gaps = [Gap(0, 5, False), Gap(5, 6, True), Gap(6, 8, False), Gap(20, 21, False), Gap(22, 30, False)]
    assert collected(gaps) == [range(5), range(6, 8), range(20, 21), range(22, 30)]
    assert collected(gaps, 2) == [range(8), range(20, 30)], "the rows between that count as gone are few"
    assert collected([]) == []


def test_l3_gaps_are_known_with_their_cause(tmp_path: Path) -> None:
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        expire(broker)
        publish(broker, 700, start=600)
        seal(broker)
    log = EmbeddedLog(str(tmp_path))
    (first, *_) = log.gaps("messages", 0, 500)
    assert (first.start, first.damaged) == (0, False)
    files = sorted((tmp_path / "sealed").glob("messages-*"))
    damage(files[-1], -30)
    covered = range(*(int(part) for part in files[-1].stem.split("-")[1:]))
    assert Gap(covered.start, covered.stop + 1, True) in log.gaps("messages", 0, log.end("messages"))
    assert log.gaps("messages", covered.stop + 1, log.end("messages")) == []


def test_l3_damage_stops_a_stream_or_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """A whole file is known to be lost before it is read; a row group when it is."""
    half_sealed(tmp_path / "data", 1500)
    files = sorted((tmp_path / "data" / "sealed").glob("messages-*"))
    damage(files[0], -30)
    with pytest.raises(StreamingQueryException, match=r"offsets 0 to \d+ \(damaged or removed\).*failOnDataLoss=false"):
        Collector(spark, tmp_path / "data", tmp_path / "c1").run()
    damage(files[1], 100)
    with pytest.raises(PySparkException, match=r"offsets \d+ to \d+ \(damaged or removed\)"):
        load(spark, tmp_path / "data").count()
    collector = Collector(spark, tmp_path / "data", tmp_path / "c2", failOnDataLoss=False)
    query = collector.run()
    read = collector.column("offset")
    assert 0 < len(read) < 1600
    assert query.lastProgress is not None
    lost = json.loads(query.lastProgress["sources"][0]["endOffset"])["missing"]
    assert lost == int(files[0].stem.split("-")[2]) + 1


@pytest.mark.parametrize("table", ["messages", "events"])
def test_l3_p6_files_that_somebody_removed_are_missed(spark: SparkSession, tmp_path: Path, table: str) -> None:
    """The collector takes note of what it removes; whatever else is gone was not its doing."""
    data = tmp_path / "data"
    with broker_at(data, success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        expire(broker)
    with broker_at(data) as broker:
        publish(broker, 1500, start=1000)
        finish(broker)
        publish(broker, 1000, "kept")
        publish(broker, 500, start=3000)
        finish(broker)
        publish(broker, 700, "kept")
        seal(broker)
    whole = load(spark, data).count()
    assert read(spark, data).count() == whole < 4300, "what was collected is not missed"
    assert load(spark, data, "lifecycle").count() == read(spark, data, "lifecycle").count() == whole
    log = EmbeddedLog(str(data))
    assert log.removed("messages") == log.removed("events") == []
    file, *later = sorted((data / "sealed").glob(f"{table}-*"))
    assert later, "what is between sealed files is not looked for in the tail"
    file.unlink()
    lost = range(int(file.stem.split("-")[1]), int(file.stem.split("-")[2]) + 1)
    assert log.removed(table) == [lost]
    told = rf"log at '{data}': .*{lost.start} to {lost.stop - 1} \(damaged or removed\)"
    for name in (table, "lifecycle"):
        with pytest.raises(PySparkException, match=told):
            load(spark, data, name).count()
        with pytest.raises(PySparkException, match=told):
            read(spark, data, name).count()
    with pytest.raises(StreamingQueryException, match=told):
        Collector(spark, data, tmp_path / "c", table=table).run()
    left = load(spark, data, table, failOnDataLoss=False).count()
    assert read(spark, data, table, failOnDataLoss=False).count() == left > 0


def test_l6_what_was_collected_before_it_was_read_stops_a_stream_or_is_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    with broker_at(tmp_path / "data", success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        expire(broker)
        collector = Collector(spark, tmp_path / "data", tmp_path / "c")
        collector.run()
        assert set(collector.column("offset")) < set(range(1000)), "what was gone when it began is no loss"
        publish(broker, 600, start=1000)
        finish(broker)
        expire(broker)
        with pytest.raises(StreamingQueryException, match="collected before they were read"):
            collector.run()
        going_on = Collector(spark, tmp_path / "data", tmp_path / "c", failOnDataLoss=False)
        query = going_on.run()
        assert query.lastProgress is not None
        at = json.loads(query.lastProgress["sources"][0]["endOffset"])
        assert at["missing"] == at["offset"] - 1000 - len(going_on.column("offset")) > 0


@pytest.mark.parametrize("table", ["messages", "lifecycle"])
def test_l6_p6_what_was_there_when_a_query_began_is_missed_too(tmp_path: Path, table: str) -> None:
    """It had not come to it yet: its first micro-batches were small, or it was away."""
    data = tmp_path / "data"
    with broker_at(data, success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        expire(broker)
        left = next(record.first for record in broker.spectate().messages())
        publish(broker, 600, start=1000)
        finish(broker)
        begun = stream(data, table=table, maxRowsPerTrigger=10)
        first = begun.initialOffset()
        assert first["offset"] == left > 0, "no micro-batch is spent on what was gone before"
        end = begun.latestOffset(first, begun.getDefaultReadLimit())
        assert end["offset"] == left + 10
        expire(broker)
        log = EmbeddedLog(str(data))
        gone = log.gaps("messages", end["offset"], log.end("messages"))
        assert gone
    with pytest.raises(DataLost, match=rf"offsets {gone[0].start} to {gone[0].stop - 1} \(collected before"):
        stream(data, table=table).latestOffset(end, ReadAllAvailable())
    later = stream(data, table=table, failOnDataLoss="false").latestOffset(end, ReadAllAvailable())
    assert later["missing"] >= sum(map(len, gone))


def test_l6_p6_a_first_micro_batch_that_is_repeated_misses_what_went_meanwhile(tmp_path: Path) -> None:
    """Spark asks anew where the query begins, since nothing has been committed."""
    data = tmp_path / "data"
    with broker_at(data, success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        begun = stream(data)
        end = begun.latestOffset(begun.initialOffset(), ReadAllAvailable())
        expire(broker)
    again = stream(data)
    parts = again.partitions(again.initialOffset(), json.loads(json.dumps(end)))
    with pytest.raises(DataLost, match=r"offsets 0 to \d+ \(collected before"):
        [batch for part in parts for batch in again.read(part)]


def test_p1_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It says only where the log ended when the query began."""
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        expire(broker)
    end = EmbeddedLog(str(tmp_path)).end("messages")
    reached = stream(tmp_path).latestOffset({"offset": 0, "offsetBegun": end}, ReadAllAvailable())
    assert (reached["offset"], reached["offsetGone"]) == (end, [[0, end]])


def test_l3_p6_a_report_says_what_it_could_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    half_sealed(tmp_path, 1500)
    whole = make_report(ReportRequest(url=str(tmp_path))).messages
    file = min((tmp_path / "sealed").glob("messages-*"))
    damage(file, -30)
    lost = int(file.stem.split("-")[2]) + 1
    assert make_report(ReportRequest(url=str(tmp_path))).messages == whole - lost
    assert f"0 to {lost - 1} (damaged or removed), {lost} numbers in all" in caplog.text


def stream(path: Path, **options: object) -> LogStream:
    given = ReadOptions.parse({"path": str(path), **{name: str(value) for name, value in options.items()}})
    return LogStream(given, table_schema(given.table))


def test_l6_l8_a_log_of_which_all_was_collected_still_ends_where_it_did(spark: SparkSession, tmp_path: Path) -> None:
    """Neither does a stream take it for another log, nor one that begins now miss what was gone before."""
    data = tmp_path / "data"
    with broker_at(data, success_retention="1ms") as broker:
        publish(broker, 600)
        finish(broker)
        before = Collector(spark, data, tmp_path / "c1", table="lifecycle")
        before.run()
        end = EmbeddedLog(str(data)).cut()
        seal(broker)
        assert broker.collect().messages == 600
    assert not list((data / "tail").glob("*.log")), "nothing is left but the note of what was collected"
    assert EmbeddedLog(str(data)).cut() == (600, end[1])
    since = Collector(spark, data, tmp_path / "c2")
    since.run()
    with broker_at(data) as broker:
        publish(broker, 5, start=600)
    for collector in (before, since):
        collector.run()
        assert collector.column("offset")[-5:] == [*range(600, 605)]


def test_a_stream_begins_at_an_end_or_a_time_and_takes_so_many_bytes(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    half_sealed(data, 600)
    latest = Collector(spark, data, tmp_path / "latest", startingOffsets="latest")
    latest.run()
    future = Collector(spark, data, tmp_path / "future", startingOffsets="2100-01-01")
    future.run()
    with broker_at(data) as broker:
        publish(broker, 10)
    latest.run()
    assert sorted(latest.column("offset")) == list(range(700, 710))
    assert future.column("offset") == []
    small = Collector(spark, data, tmp_path / "small", maxBytesPerTrigger=100_000)
    query = small.run()
    assert sorted(small.column("offset")) == list(range(710))
    assert len(small.batches) > 1
    told = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
    assert told["offset"] == 710
    assert told["newestAgeSeconds"] >= 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false, not 'perhaps'"),
        ({"startingOffsets": "soon"}, "startingOffsets must be earliest, latest or a time"),
        ({"startingOffsets": "5"}, "not '5'; an offset is given as fromOffset"),
        ({"startingOffsets": "-1"}, "not '-1'; an offset is given as fromOffset"),
        ({"startingOffsets": "2026-01-01", "fromOffset": "5"}, "both say where to begin"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be a whole number from 1 on"),
        ({"queues": "[1]"}, r"queues must be names separated by commas, or a JSON list .* not '\[1\]'"),
        ({"topics": '["a"'}, "topics must be names separated by commas, or a JSON list"),
    ],
)
def test_options_are_checked_where_they_are_written(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        ReadOptions.parse({"path": "data", **options})


def test_of_two_limits_the_nearer_one_counts(tmp_path: Path) -> None:
    half_sealed(tmp_path, 300)

    def reached(**options: str) -> int:
        stream = LogStream(ReadOptions.parse({"path": str(tmp_path), **options}), table_schema("messages"))
        number: int = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())["offset"]
        return number

    by_bytes = reached(maxBytesPerTrigger="20000")
    assert 10 < by_bytes < 100
    assert reached(maxBytesPerTrigger="20000", maxRowsPerTrigger="200") == by_bytes
    assert reached(maxBytesPerTrigger="20000", maxRowsPerTrigger="10") == 10


def test_p1_what_is_sealed_while_a_stream_looks_for_losses_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_at(tmp_path) as broker:
        publish(broker, 1000)
        listed = Lister.list

        def then_sealed(lister: Lister) -> Listing:
            listing = listed(lister)
            monkeypatch.undo()
            seal(broker)
            return listing

        log = EmbeddedLog(str(tmp_path))
        monkeypatch.setattr(Lister, "list", then_sealed)
        assert log.gaps("messages", 0, 1000) == []
        assert log.sealed("messages")


def test_p1_a_stream_opens_each_sealed_file_once_to_plan_its_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_sealed(tmp_path, 1500)
    files = sorted(file.name for file in (tmp_path / "sealed").glob("messages-*"))
    opened: list[str] = []
    open_file = SealedParquet.__init__

    def noted(sealed: SealedParquet, disk: Disk, name: str) -> None:
        opened.append(Path(name).name)
        open_file(sealed, disk, name)

    monkeypatch.setattr(SealedParquet, "__init__", noted)
    stream = LogStream(ReadOptions.parse({"path": str(tmp_path)}), table_schema("messages"))
    start, planned = stream.initialOffset(), 0
    while (end := stream.latestOffset(start, ReadMaxRows(100))) != start:
        planned += sum(
            part.stop - part.start for part in stream.partitions(start, end) if isinstance(part, ReadPartition)
        )
        start = json.loads(json.dumps(end))
    assert planned == 1600
    assert sorted(opened) == files
    assert len(files) > 1
