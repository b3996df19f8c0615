"""P1: the data source `remuda`, found without registering it."""

from __future__ import annotations

import gc
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from remuda.model.errors import InvalidOption
from remuda.model.message import Message, Priority
from remuda.spark.source.data_source import ReadPartition, Shape, read_part, rows_per_part
from remuda.spark.source.directory_log import EmbeddedLog, group_start
from remuda.spark.source.read_options import ReadOptions
from tests.spark.samples import (
    broker_at,
    column,
    half_sealed,
    load,
    numbers,
    offsets,
    plain,
    play,
    publish,
    seal,
    to_micros,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "data"
    half_sealed(path)
    return path


def test_all_messages_come_from_sealed_files_and_the_tail(spark: SparkSession, log: Path) -> None:
    assert list((log / "sealed").iterdir())
    frame = load(spark, log)
    assert offsets(frame) == list(range(3100))
    assert numbers(column(frame, "body")) == list(range(3100))


def test_every_column_comes_back_as_it_was_published(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    micros = int(moment.timestamp() * 1_000_000)
    whole = Message(
        "fruit.sour", b"\x00\xff", id="mine", topics=("fruit.sour", "stone.x"), object="tree", key="7",
        timestamp=micros, mime_type="image/png", headers={"a": "1", "b": "ü"}, priority=Priority.HIGH,
        expires=micros * 2, due=micros * 2,
    )  # fmt: skip
    with broker_at(tmp_path) as broker:
        broker.publish([whole, Message("fruit", b"")])
        first, second = load(spark, tmp_path).orderBy("offset").collect()
    assert (first["id"], first["name"], first["topics"]) == ("mine", "fruit.sour", ["fruit.sour", "stone.x"])
    assert (first["object"], first["key"], first["mime_type"]) == ("tree", "7", "image/png")
    assert first["headers"] == {"a": "1", "b": "ü"}
    assert (first["priority"], bytes(first["body"]), first["queues"]) == (10, b"\x00\xff", ["fruit", "stone"])
    assert [to_micros(first[name]) for name in ("timestamp", "expires", "due")] == [micros, 2 * micros, 2 * micros]
    assert len(bytes(first["digest"])) == 16
    assert (second["object"], second["headers"], second["topics"], second["digest"]) == (None, {}, [], None)


def test_the_log_is_read_in_parallel_by_file_and_range(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log, rowsPerPartition=400)
    parts = frame.selectExpr("spark_partition_id() as part", "offset").groupBy("part").count().collect()
    assert len(parts) > 5
    assert max(part["count"] for part in parts) <= 400
    assert offsets(frame) == list(range(3100))


def test_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path):
        pass
    for table in ("messages", "events", "lifecycle"):
        assert load(spark, tmp_path, table).count() == 0


def test_a_missing_directory_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no directory"):
        load(spark, tmp_path / "nowhere").count()
    assert not (tmp_path / "nowhere").exists()


def test_an_unknown_option_or_column_is_named(spark: SparkSession, log: Path) -> None:
    with pytest.raises(PySparkException, match=r"did you mean 'queues'\?"):
        load(spark, log, queue="a").count()
    with pytest.raises(PySparkException, match=r"no column 'boddy'; did you mean 'body'\?"):
        spark.read.format("remuda").schema("boddy binary").load(str(log)).count()


def test_a_narrow_schema_reads_just_those_columns(spark: SparkSession, log: Path) -> None:
    frame = spark.read.format("remuda").schema("Body string, OFFSET bigint").load(str(log))
    rows = frame.orderBy("offset").limit(2).collect()
    assert [(row["OFFSET"], row["Body"][:2]) for row in rows] == [(0, "0 "), (1, "1 ")]


def test_a_column_is_named_once() -> None:
    with pytest.raises(InvalidOption, match="the schema names column 'OFFSET' more than once"):
        Shape("messages", StructType().add("OFFSET", "long").add("offset", "long"))


def test_a_type_that_a_column_can_never_have_is_named() -> None:
    with pytest.raises(InvalidOption, match="column 'headers' is map<string,string> and cannot be read as string"):
        Shape("messages", StructType().add("headers", "string"))
    named = pa.RecordBatch.from_pydict({"name": ["orders"]})
    with pytest.raises(InvalidOption, match=r"column 'name' cannot be read as int32: .*'orders'"):
        Shape("messages", StructType().add("name", "integer")).fit(named)


def test_offsets_and_times_choose_rows(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        publish(broker, 700)
        seal(broker)
        between = broker.runtime.clock()
        publish(broker, 300, start=700)
    assert offsets(load(spark, tmp_path, fromOffset=650, toOffset=720)) == list(range(650, 720))
    assert offsets(load(spark, tmp_path, since=between)) == list(range(700, 1000))
    assert offsets(load(spark, tmp_path, until=between)) == list(range(700))


def test_queues_topics_and_states_choose_rows(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        publish(broker, 500, "fruit.sour")
        publish(broker, 500, "fruits.x")
        seal(broker)
        publish(broker, 10, "fruit.sweet")
        subscription = broker.subscribe("fruit", batch=5)
        delivery = subscription.receive(60)
        assert delivery is not None
        delivery.ack()
        subscription.close()
    assert load(spark, tmp_path, queues="fruit").count() == 510
    assert load(spark, tmp_path, topics="fruit.sour").count() == 500
    assert load(spark, tmp_path, topics="fruit").count() == 510
    states = column(load(spark, tmp_path, "events", states="S,X"), "state")
    assert set(states) == {"S", "X"}
    assert load(spark, tmp_path, "lifecycle", states="X", queues="fruit").count() == 5
    assert load(spark, tmp_path, "lifecycle", topics="fruit.sweet").count() == 10


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_filters_give_the_same_rows_with_and_without_pushing_them_down(
    spark: SparkSession, log: Path, allowed: str
) -> None:
    conf = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(conf)
    spark.conf.set(conf, allowed)
    try:
        frame = load(spark, log).where("offset between 2900 and 3050 and name = 'orders'")
        assert offsets(frame) == list(range(2900, 3051))
    finally:
        spark.conf.set(conf, str(before))


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_two_filters_over_one_frame_keep_apart(spark: SparkSession, log: Path, allowed: str) -> None:
    conf = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(conf)
    spark.conf.set(conf, allowed)
    try:
        frame = load(spark, log)
        few, many = frame.where("offset < 10"), frame.where("offset >= 10 and offset < 100")
        assert offsets(few.union(many)) == list(range(100))
        assert frame.count() > 100
    finally:
        spark.conf.set(conf, str(before))


def test_it_can_be_a_table_of_sql(spark: SparkSession, log: Path) -> None:
    spark.sql(f"create or replace temporary view bus using remuda options (path '{log}', table 'messages')")
    try:
        assert spark.sql("select count(*) from bus where offset < 10").collect()[0][0] == 10
    finally:
        spark.catalog.dropTempView("bus")


def test_reading_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 500)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    load(spark, tmp_path).count()
    load(spark, tmp_path, "lifecycle").count()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_l8_it_reads_beside_a_broker_that_writes_seals_and_shrinks(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing that waits in a queue is ever missing, and nothing is ever there twice."""
    stop = threading.Event()
    with broker_at(tmp_path, success_retention="1ms", collect_interval="1h") as broker:
        publish(broker, 400, "keep")

        def work() -> None:
            subscription = broker.subscribe("pass", batch=500)
            number = 400
            while not stop.is_set():
                publish(broker, 500, "pass", start=number)
                publish(broker, 100, "keep", start=number + 500)
                number += 600
                delivery = subscription.receive(60)
                if delivery is not None:
                    delivery.ack()
                broker.collect()
                stop.wait(0.1)
            subscription.close()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(3):
                before = broker.queue("keep").size
                kept = offsets(load(spark, tmp_path, queues="keep", rowsPerPartition=300))
                assert len(set(kept)) == len(kept)
                assert before <= len(kept) <= broker.queue("keep").size
        finally:
            stop.set()
            worker.join()
        assert len(offsets(load(spark, tmp_path, queues="keep"))) == broker.queue("keep").size
        assert load(spark, tmp_path).count() < broker.spectate().log.ends().next_offset


def test_l3_a_damaged_segment_costs_only_its_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 2000)
    files = sorted((tmp_path / "sealed").glob("messages-*"))
    assert len(files) > 2
    first, last = (int(part) for part in files[1].stem.split("-")[1:])
    data = bytearray(files[1].read_bytes())
    data[100] ^= 255
    files[1].write_bytes(data)
    found = offsets(load(spark, tmp_path, failOnDataLoss=False))
    assert found == [number for number in range(2100) if not first <= number <= last]


def test_m7_lives_are_those_that_the_broker_tells(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path) as broker:
        play(broker)
        rows = {(row["offset"], row["queue"]): row for row in load(spark, tmp_path, "lifecycle").collect()}
        for offset in sorted({offset for offset, _ in rows}):
            told = broker.message(offset)
            assert told.topic_count == rows[offset, told.queues[0].queue if told.queues else None]["topic_count"]
            for view in told.queues:
                row = rows.pop((offset, view.queue))
                assert row["state"] == view.state.value
                for name in ("queued", "delivered", "success", "archived", "attempts", "confirmed_count", "reason"):
                    assert row[name] == getattr(view, name), name
                for name in ("modified", "consumed", "processed", "completed", "failed"):
                    assert to_micros(row[name]) == getattr(view, name), name
                assert [
                    (one["consumer"], to_micros(one["fetched"]), one["duration"]) for one in row["consumed_by"]
                ] == [(one.consumer, one.fetched, one.duration) for one in view.consumed_by]
        assert {key: row["state"] for key, row in rows.items()} == {(offset, None): "U" for offset, _ in rows}, (
            "only unchanged messages are in no queue"
        )
        assert rows


def test_plain_rows_do_not_depend_on_how_they_are_parted(spark: SparkSession, log: Path) -> None:
    assert plain(load(spark, log, rowsPerPartition=97, toOffset=500)) == plain(load(spark, log, toOffset=500))


@pytest.mark.parametrize(
    ("table", "rows", "columns", "expected"),
    [
        ("messages", 1000, 17, 1 << 16),
        ("messages", 1_000_000, 17, 125_000),
        ("messages", 8 << 20, 17, 1 << 20),
        ("messages", 9 << 20, 17, 9 << 16),  # in two rounds, of which neither leaves a core idle
        ("messages", 9 << 20, 1, 9 << 17),
        ("events", 160 << 20, 15, 1 << 20),
        ("lifecycle", 100_000_000, 17, 1 << 18),
    ],
)
def test_p1_parts_are_as_large_as_leaves_no_core_idle(table: str, rows: int, columns: int, expected: int) -> None:
    assert rows_per_part(table, rows, columns, tasks=8) == expected


def test_parts_begin_where_row_groups_do() -> None:
    """A row group that is cut apart is read twice."""
    assert group_start([], 8191) == 8192
    assert [group_start([0, 20_000], number) for number in (4000, 12_000, 19_999, 20_000, 29_000)] == [
        0, 8192, 16_384, 20_000, 28_192,
    ]  # fmt: skip


def test_what_a_worker_has_loaded_is_not_collected_after_each_task(log: Path) -> None:
    """Spark's workers call `gc.collect()` between tasks, which took most of the time of a small one."""
    options, shape = ReadOptions.parse({"path": str(log)}), Shape("messages", StructType().add("body", "binary"))
    identity = EmbeddedLog(str(log)).identity
    read = [
        batch
        for part in (ReadPartition(0, 10, identity), ReadPartition(10, 20, identity))
        for batch in read_part(options, shape, part)
    ]
    assert sum(batch.num_rows for batch in read) == 20
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()
