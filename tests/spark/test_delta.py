"""P3: a lake of Delta tables, which programs that know nothing of Remuda read and tend."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict
from remuda.spark.lake.table import LakeTable
from remuda.spark.pipelines.archive import events_table, lifecycle_table, messages_table
from remuda.spark.pipelines.jobs import JOBS
from remuda.spark.pipelines.streaming_queries import Place
from tests.spark.samples import broker_at, column, load, offsets, plain, play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("number", "long").add("day", "date")
QUEUES = StructType([*SCHEMA.fields]).add("queue", "string")


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def days(spark: SparkSession, lake: str, *numbers: int) -> LakeTable:
    """A table with one commit for each number."""
    table = LakeTable(lake, "days", SCHEMA, ("day",))
    for number in numbers:
        rows = spark.range(number, number + 1).selectExpr("id as number", "date'2026-01-01' as day")
        table.append(rows, app="app", batch=number)
    return table


def delta_rows(root: Path) -> pa.Table:
    """What a reader of Delta finds who is neither Spark nor Remuda."""
    return pa.table(DeltaTable(root).scan().read_all())


def test_the_trail_in_delta_is_the_trail(spark: SparkSession, lake: str, tmp_path: Path) -> None:
    """Archive, lifecycle, replay and retention on Delta tables, read by delta-rs as well as by Spark."""
    path = tmp_path / "data"
    place = Place(url=str(path), lake=lake, options={"maxRows": "100"})
    with broker_at(path) as broker:
        play(broker)
        for name in ("archive", "lifecycle"):
            JOBS[name](spark, place)
        messages, events, lives = (table(lake) for table in (messages_table, events_table, lifecycle_table))
        assert plain(lives.read(spark).drop("date", "log")) == plain(load(spark, path, "lifecycle"))
        assert offsets(messages.read(spark).select("offset").distinct()) == offsets(load(spark, path))
        assert events.read(spark).count() == delta_rows(events.root).num_rows == load(spark, path, "events").count()
        elsewhere = delta_rows(messages.root)
        assert sorted(elsewhere["offset"].to_pylist()) == offsets(messages.read(spark))
        assert set(elsewhere["date"].to_pylist()) == {row[0] for row in messages.read(spark).select("date").collect()}
        assert sorted(elsewhere["body"].to_pylist()) == sorted(map(bytes, column(messages.read(spark), "body")))
        before = broker.queue("orders").size
        JOBS["replay"](spark, Place(url=str(path), lake=lake, options={"where": "queue = 'orders' and offset < 5"}))
        broker.runtime.upkeep.take_in()
        assert broker.queue("orders").size == before + 5
    JOBS["retention"](spark, Place(url=str(path), lake=lake, options={"success": "0s", "dead": "0s"}))
    left = lives.read(spark)
    assert left.where("archived and not (reason <=> 'elsewhere')").count() == 0
    assert sorted(delta_rows(lives.root)["offset"].to_pylist()) == offsets(left) != []


def test_batches_are_known_from_a_checkpoint_of_the_log_too(spark: SparkSession, lake: str) -> None:
    table = days(spark, lake, 0, 1)
    DeltaTable(table.root).create_checkpoint()
    (table.root / "_delta_log" / f"{0:020d}.json").unlink()
    assert table.manifest().last_batch("app") == 1
    days(spark, lake, 1, 2)
    assert sorted(delta_rows(table.root)["number"].to_pylist()) == [0, 1, 2]


def test_what_another_program_does_to_a_table_is_seen(spark: SparkSession, lake: str) -> None:
    table = days(spark, lake, 0, 1, 2)
    DeltaTable(table.root).optimize.compact()
    assert len(table.manifest().files) == 1
    DeltaTable(table.root).delete("number = 1")
    assert sorted(row["number"] for row in table.read(spark).collect()) == [0, 2]
    assert table.drop(lambda partition: partition["day"] == "2026-01-01") == 1
    assert delta_rows(table.root).num_rows == 0


def test_p6_a_folder_of_delta_is_not_read_as_plain_parquet(spark: SparkSession, lake: str) -> None:
    """It holds files of older versions too. Another program's vacuum removes the warning; the next commit puts it
    back."""
    table = days(spark, lake, 0, 1)
    for number in (2, 3):
        with pytest.raises(Exception, match="READ-THIS-TABLE-AS-DELTA"):
            pq.read_table(table.root)
        DeltaTable(table.root).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert pq.read_table(table.root).num_rows == number
        table = days(spark, lake, number)
    assert delta_rows(table.root).num_rows == 4
    assert table.vacuum(0) == 0


def test_statistics_tell_how_many_rows_there_are(spark: SparkSession, lake: str) -> None:
    actions = pa.table(DeltaTable(days(spark, lake, 0, 1).root).get_add_actions(flatten=True))
    assert actions["num_records"].to_pylist() == [1, 1]


def queues(spark: SparkSession, table: LakeTable, *names: str | None) -> None:
    """A commit with a row of each queue."""
    rows = [(number, date(2026, 1, 1), name) for number, name in enumerate(names)]
    table.append(spark.createDataFrame(rows, QUEUES))


def test_p3_a_file_holds_one_queue_and_its_statistics_say_which(spark: SparkSession, lake: str) -> None:
    """So that every engine leaves out the files of other queues, whatever a queue is called."""
    table = LakeTable(lake, "things", QUEUES, ("day",), apart=("queue",))
    queues(spark, table, "a", "b", None, "a")
    assert DeltaTable(table.root).metadata().partition_columns == ["day"]
    actions = pa.table(DeltaTable(table.root).get_add_actions(flatten=True)).to_pylist()
    told = {(one["min.queue"], one["max.queue"], one["null_count.queue"], one["num_records"]) for one in actions}
    assert told == {("a", "a", 0, 2), ("b", "b", 0, 1), (None, None, 1, 1)}
    DeltaTable(table.root).optimize.compact()
    queues(spark, table, "c")
    assert sorted(map(str, column(table.read(spark), "queue"))) == ["None", "a", "a", "b", "c"]


@pytest.mark.parametrize("apart", [("queue",), ()])
def test_p6_a_filter_on_a_column_without_statistics_finds_its_rows(
    spark: SparkSession, lake: str, apart: tuple[str, ...]
) -> None:
    """delta-rs takes such columns for null, unless the table says which columns have statistics."""
    table = LakeTable(lake, "things", QUEUES, ("day",), apart=apart)
    queues(spark, table, "a", "b", None, "a")
    found = DeltaTable(table.root).to_pyarrow_dataset()
    assert found.count_rows(filter=pc.field("number") >= 1) == 3
    assert found.count_rows(filter=pc.field("queue") == "a") == 2
    assert found.count_rows(filter=pc.field("queue").is_null()) == 1


def test_p6_a_table_that_does_not_say_which_columns_have_statistics_comes_to_say_it(
    spark: SparkSession, lake: str
) -> None:
    table = LakeTable(lake, "things", QUEUES, ("day",), apart=("queue",))
    queues(spark, table, "a", "b")
    DeltaTable(table.root).alter.set_table_properties({"delta.dataSkippingStatsColumns": "number,queue"})
    queues(spark, table, "c")
    assert DeltaTable(table.root).to_pyarrow_dataset().count_rows(filter=pc.field("number") >= 0) == 3


def test_a_table_that_was_parted_by_queue_stays_so(spark: SparkSession, lake: str) -> None:
    table = LakeTable(lake, "things", QUEUES, ("day",), apart=("queue",))
    DeltaTable.create(str(table.root), Schema.from_json(QUEUES.json()), partition_by=["day", "queue"])
    for name in ("a/b", "__HIVE_DEFAULT_PARTITION__"):
        queues(spark, table, name, None)
    assert DeltaTable(table.root).metadata().partition_columns == ["day", "queue"]
    found = sorted(map(str, column(table.read(spark), "queue")))
    assert found == sorted(map(str, delta_rows(table.root)["queue"].to_pylist()))
    assert found == ["None", "None", "__HIVE_DEFAULT_PARTITION__", "a/b"]


def test_a_table_whose_files_do_not_tell_its_rows_is_refused(spark: SparkSession, lake: str) -> None:
    """With deletion vectors or column mapping, Spark's Parquet reader would give wrong rows."""
    from deltalake import TableFeatures

    table = days(spark, lake, 0)
    DeltaTable(table.root).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(Conflict, match=r"features of Delta .*[dD]eletion.?[vV]ectors.*nothing was read or written"):
        table.read(spark)
    with pytest.raises(Conflict, match="features of Delta"):
        days(spark, lake, 1)
