"""P1: `remuda.spark.read` gives the rows of the source at native speed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from remuda import lake
from remuda.model.errors import InvalidOption
from remuda.spark import read, session
from remuda.spark.source import snapshots, verifying
from remuda.spark.source.data_source import RemudaSource
from tests.spark.samples import broker_at, half_sealed, load, offsets, plain, play, publish, seal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    yield
    snapshots.release()


@pytest.mark.parametrize("table", ["messages", "events", "lifecycle"])
def test_the_rows_are_those_of_the_source(spark: SparkSession, tmp_path: Path, table: str) -> None:
    with broker_at(tmp_path) as broker:
        play(broker)
        publish(broker, 800)
        seal(broker)
        play_on(broker)
        assert list((tmp_path / "sealed").iterdir())
        expected = load(spark, tmp_path, table)
        found = read(spark, tmp_path, table)
        assert found.columns == expected.columns
        assert plain(found) == plain(expected)


def play_on(broker: Any) -> None:
    publish(broker, 20)
    delivery = broker.pull("orders", 30, consumer="late")
    assert delivery is not None
    delivery.ack()
    broker.runtime.sync()


def test_options_choose_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        publish(broker, 500)
        publish(broker, 30, "fruit.sour")
        seal(broker)
        publish(broker, 30, "fruits")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("messages", {"fromOffset": 400, "toOffset": 550}),
        ("messages", {"queues": ["fruit"], "topics": ["fruit.sour", "none"]}),
        ("messages", {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": "2021-01-01"}),
        ("lifecycle", {"topics": ["fruit.*"], "states": ["Q"]}),
    ]
    for table, options in asked:
        texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in options.items()}
        assert plain(read(spark, tmp_path, table, **options)) == plain(load(spark, tmp_path, table, **texts))


def test_an_empty_log_has_no_rows_but_all_columns(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path):
        pass
    for table in ("messages", "events", "lifecycle"):
        frame = read(spark, tmp_path, table)
        assert frame.count() == 0
        assert frame.columns == load(spark, tmp_path, table).columns


def test_l3_a_damaged_segment_costs_only_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    files = sorted((tmp_path / "sealed").glob("messages-*"))
    for file, place in ((files[0], 100), (files[1], -30)):
        _damage(file, place)
    missing = r"rows are missing .*: offsets \d+ to \d+ \(damaged or removed\)"
    with pytest.raises(PySparkException, match=missing):
        load(spark, tmp_path).count()
    with pytest.raises(Exception, match=f"{missing}|CRC checksum verification failed|FAILED_READ_FILE"):
        read(spark, tmp_path, "messages").agg({"body": "max"}).collect()
    found = offsets(read(spark, tmp_path, "messages", failOnDataLoss=False))
    assert found == offsets(load(spark, tmp_path, failOnDataLoss=False))
    assert 0 < len(found) < 1600


def _damage(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 255
    file.write_bytes(data)


def test_l3_every_damaged_page_stops_spark_s_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    """Wherever the damage is: no row is ever wrong."""
    half_sealed(tmp_path / "data", 600)
    file = sorted((tmp_path / "data" / "sealed").glob("messages-*"))[0]
    whole = file.read_bytes()
    right = plain(read(spark, tmp_path / "data"))
    for place in range(4, len(whole) - 8, len(whole) // 12):
        _damage(file, place)
        try:
            told = plain(read(spark, tmp_path / "data"))
        except Exception as error:
            told = [str(error)]
        assert told == right or re.search("rows are missing|CRC|FAILED_READ_FILE", told[0]), place
        file.write_bytes(whole)


def test_what_was_listed_stays_readable_while_the_broker_shrinks_it(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 900)
        publish(broker, 10, "keep")
        seal(broker)
        frame = read(spark, tmp_path, "messages")
        subscription = broker.subscribe("orders", batch=5000)
        delivery = subscription.receive(60)
        assert delivery is not None
        delivery.ack()
        subscription.close()
        assert broker.collect().messages
        assert frame.count() >= 900
        assert read(spark, tmp_path, "messages").count() < 900


def test_pins_go_with_the_process_and_those_of_dead_ones_at_the_next_read(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 800)
    read(spark, tmp_path, "messages")
    mine = list((tmp_path / "pins").iterdir())
    assert len(mine) == 1
    snapshots.release()
    assert not (tmp_path / "pins").exists()
    dead = tmp_path / "pins" / mine[0].name.replace(mine[0].name.rpartition("-")[2], "999999999")
    dead.mkdir(parents=True)
    read(spark, tmp_path, "messages")
    assert not dead.exists()


@pytest.mark.parametrize("wrong", [5, True, b"orders", {"a": 1}, ["a", 5], object()])
def test_names_of_a_wrong_type_are_refused(spark: SparkSession, tmp_path: Path, wrong: object) -> None:
    for option in ("queues", "topics", "Queues"):
        with pytest.raises(InvalidOption, match=rf"{option} must be a name or a list of names, not"):
            read(spark, tmp_path, "messages", **{option: wrong})
    with pytest.raises(InvalidOption, match="states must be a name or a list of names"):
        read(spark, tmp_path, "events", states=wrong)


@pytest.mark.parametrize(
    "arguments",
    [{"name": None}, {"name": 5}, {"master": 5}, {"remote": b"sc://x"}, {"config": 5}, {"config": {5: "x"}}],
)
def test_a_session_is_asked_for_with_the_right_types(arguments: dict[str, Any]) -> None:
    """Also where one runs already, which would be given whatever was asked for."""
    with pytest.raises(InvalidOption, match=f"{next(iter(arguments))} must "):
        session(**arguments)


@pytest.mark.parametrize("place", ["", "\0", "a\0b"])
def test_a_path_that_can_be_none_is_refused(spark: SparkSession, place: str) -> None:
    with pytest.raises(InvalidOption, match="give a directory as a path or a URL, not "):
        read(spark, place)
    with pytest.raises(InvalidOption, match="give a directory as a path or a URL, not "):
        lake.read(spark, place, "messages")


def test_what_is_wrong_is_said_before_spark_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    for wrong in (None, "spark"):
        with pytest.raises(InvalidOption, match="spark must be a SparkSession"):
            read(wrong, tmp_path)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="spark must be a SparkSession"):
            lake.read(wrong, tmp_path, "messages")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="give a directory as a path or a URL, not None"):
        read(spark, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="option since cannot be b'x'"):
        read(spark, tmp_path, since=b"x")
    with pytest.raises(InvalidOption, match="there is no table 5"):
        lake.read(spark, tmp_path, 5)  # type: ignore[arg-type]


def test_stream_options_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="is for streams"):
        read(spark, tmp_path, "messages", maxRowsPerTrigger=5)
    for name, value in (("MAXROWSPERTRIGGER", "5"), ("maxBytesPerTrigger", "5"), ("startingOffsets", "latest")):
        source = RemudaSource({"path": str(tmp_path), name: value})
        with pytest.raises(InvalidOption, match="is for streams"):
            source.reader(source.schema())


def _never(disk: object, name: str) -> bool:
    raise AssertionError(f"{name} was read once more")


def test_p7_planning_reads_names_and_footers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read the rows, and verify the pages that they read; a footer is read once."""
    half_sealed(tmp_path, 1500)
    monkeypatch.setattr(verifying, "is_whole", _never)
    assert read(spark, tmp_path).select("offset").count() == 1600
    monkeypatch.setattr(verifying, "pages_are_checked", _never)
    assert read(spark, tmp_path).select("offset").count() == 1600


@pytest.mark.parametrize("few", [0, 1 << 30], ids=["by tasks", "here"])
def test_p7_what_may_be_left_out_is_found_by_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(verifying, "_FEW_BYTES", few)
    half_sealed(tmp_path, 1500)
    _damage(sorted((tmp_path / "sealed").glob("messages-*"))[0], 100)
    found = offsets(read(spark, tmp_path, "messages", failOnDataLoss=False))
    assert found == offsets(load(spark, tmp_path, failOnDataLoss=False))
    assert 0 < len(found) < 1600


def test_p7_the_live_tail_is_told_what_is_wanted(spark: SparkSession, tmp_path: Path) -> None:
    """By all options, and sealed files that hold none of the numbers are not looked at."""
    half_sealed(tmp_path, 1500)
    with broker_at(tmp_path) as broker:
        publish(broker, 50, "fruit", start=2000)
    frame = read(spark, tmp_path, queues=["fruit"], fromOffset=1200, since="2020-01-01")
    assert len(offsets(frame)) == 50
    options = frame._jdf.queryExecution().toString()
    assert "sealed/messages-00000000000000000000" not in options
