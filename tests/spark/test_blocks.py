"""P7: what a micro-batch costs follows what it changes, not what the table or the log holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from remuda.log.sealed.parquet import SealedParquet
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.spark import read
from remuda.spark.lake.table import LakeTable
from remuda.spark.lake.versions import Blocks, LakeFile
from remuda.spark.pipelines import jobs
from remuda.spark.pipelines.jobs import JOBS, history_table, latest
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.source.data_source import RemudaSource, planned_here
from remuda.spark.source.read_options import ReadOptions
from tests.spark.samples import broker_at, finish, half_sealed, load, plain, publish, seal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from remuda.log.disk import Disk

LIVES = StructType().add("offset", "long").add("queue", "string").add("state", "string").add("date", "string")
KEYS = StructType().add("key", "string").add("hash", "long")


def lives(spark: SparkSession, numbers: Sequence[int], state: str) -> DataFrame:
    rows = [(number, "q", state, f"2026-01-0{number // 500 + 1}") for number in numbers]
    return spark.createDataFrame(rows, LIVES)


def paths(table: LakeTable) -> set[str]:
    return {file.path for file in table.manifest().files}


def test_p7_a_change_rewrites_the_files_of_its_neighbours_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), "lives", LIVES, ("date",), blocks=Blocks("offset", 100))
    table.merge(lives(spark, range(1000), "Q"), latest, app="app", batch=0)
    first = paths(table)
    assert len(first) >= 10
    table.merge(lives(spark, [3, 777, 1000], "X"), latest, app="app", batch=1)
    gone = first - paths(table)
    at = [file.bounds["offset"] for file in table.manifest().files if file.path not in first]
    assert sorted(first // 100 for first, _ in at) == [0, 7, 10]
    assert len(gone) == len(first) - len(first & paths(table)) <= 2 * len(first) // 10
    found = {row["offset"]: row["state"] for row in table.read(spark).collect()}
    assert found == {number: "X" if number in (3, 777, 1000) else "Q" for number in range(1001)}
    assert table.read(spark).count() == 1001
    elsewhere = polars.scan_delta(str(table.root))
    assert elsewhere.filter(polars.col("offset") > 990).collect().height == 10
    assert DeltaTable(table.root).to_pyarrow_table(filters=[("offset", "=", 777)])["state"].to_pylist() == ["X"]


def test_p7_a_table_without_bounds_is_rewritten_by_partition_and_has_them_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Such as one that an earlier version wrote, or that another program has put together."""
    older = LakeTable(str(tmp_path), "lives", LIVES, ("date",))
    older.append(lives(spark, range(1000), "Q"), app="app", batch=0)
    DeltaTable(older.root).optimize.compact()
    table = LakeTable(str(tmp_path), "lives", LIVES, ("date",), blocks=Blocks("offset", 100))
    table.merge(lives(spark, [3, 1200], "X"), latest, app="app", batch=1)
    table.merge(lives(spark, [4], "X"), latest, app="app", batch=2)
    found = {row["offset"]: row["state"] for row in table.read(spark).collect()}
    assert found == {number: "X" if number in (3, 4, 1200) else "Q" for number in (*range(1000), 1200)}
    assert table.read(spark).count() == 1001


def test_p7_blocks_of_spread_numbers_are_halved_as_a_table_grows(spark: SparkSession, tmp_path: Path) -> None:
    table = LakeTable(str(tmp_path), "keys", KEYS, (), blocks=Blocks("hash", 50, 1 << 62))

    def named(*numbers: int) -> DataFrame:
        rows = spark.createDataFrame([(str(number),) for number in numbers], "key string")
        return rows.withColumn("hash", F.shiftrightunsigned(F.xxhash64("key"), 2))

    def joined(old: DataFrame | None, new: DataFrame) -> DataFrame:
        return new if old is None else old.unionByName(new)

    for batch, numbers in enumerate((range(10), range(10, 400), range(400, 800))):
        table.merge(named(*numbers), joined, app="app", batch=batch)
    files = table.manifest().files
    assert len(files) == 16
    assert max(file.rows or 0 for file in files) < 100
    before = paths(table)
    table.merge(named(800), joined, app="app", batch=3)
    assert len(before - paths(table)) == 1
    assert sorted(int(row["key"]) for row in table.read(spark).collect()) == list(range(801))


def test_p7_history_rewrites_what_is_told_of(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_KEYS", 20)
    place = Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake"))
    with broker_at(tmp_path / "data") as broker:
        broker.publish([Message("things", b"1", object="o", key=str(number)) for number in range(300)])
        broker.runtime.sync()
        JOBS["history"](spark, place)
        before = paths(history_table(place.lake))
        assert len(before) == 16
        broker.publish([Message("things", b"2", object="o", key="7")])
        broker.runtime.sync()
        JOBS["history"](spark, place)
    table = history_table(place.lake)
    assert len(before - paths(table)) == 1
    rows = {row["key"]: (row["version"], row["messages"]) for row in table.read(spark).collect()}
    assert rows == {str(number): (2, 2) if number == 7 else (1, 1) for number in range(300)}


def test_p7_what_is_known_of_a_sealed_file_is_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what follows lives, and by metrics, which recount windows for each micro-batch: a footer is read once."""
    with broker_at(tmp_path) as broker:
        for first in range(0, 6000, 500):
            publish(broker, 500, start=first)
            finish(broker)
        seal(broker)
    sealed = [f"sealed/{path.name}" for path in (tmp_path / "sealed").glob("events-*")]
    opened: Counter[str] = Counter()
    begin = SealedParquet.__init__

    def noted(self: SealedParquet, disk: Disk, name: str) -> None:
        opened[name] += 1
        begin(self, disk, name)

    monkeypatch.setattr(SealedParquet, "__init__", noted)
    source = RemudaSource({"path": str(tmp_path), "table": "lifecycle"})
    stream = source.streamReader(source.schema())
    start: dict[str, Any] = stream.initialOffset()
    for _ in range(5):
        end = stream.latestOffset(start, ReadMaxRows(100))
        assert stream.partitions(start, end)
        start = end
    assert {opened[name] for name in sealed} == {1}
    options = ReadOptions(url=str(tmp_path), table="lifecycle")
    for _ in range(5):
        frame = planned_here(spark, options, ("offset", "state"))
    assert {opened[name] for name in sealed} == {2}, "this process has its own"
    assert len(sealed) > 2
    assert plain(frame) == plain(load(spark, tmp_path, "lifecycle").select("offset", "state"))


def test_p7_a_queue_s_name_in_another_case_is_told(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 700)
    with broker_at(tmp_path) as broker:
        publish(broker, 1, "Both")
        publish(broker, 1, "both")
    for given in ({"queues": "Orders"}, {"queues": "orders,BOTH"}):
        wrong = r"the log has no message of a queue '(Orders|BOTH)', but of '(orders|Both)': names are told by case"
        source = RemudaSource({"path": str(tmp_path), **given})
        for way in (
            lambda source=source: source.reader(source.schema()).partitions(),
            lambda source=source: source.streamReader(source.schema()).initialOffset(),
            lambda given=given: read(spark, tmp_path, **given),
        ):
            with pytest.raises(InvalidOption, match=wrong):
                way()
    assert read(spark, tmp_path, queues=["Both", "nobody's"]).count() == 1
    assert load(spark, tmp_path, queues="both").count() == 1


@pytest.mark.parametrize(("rows", "width"), [(0, 1024), (50, 1024), (51, 512), (100, 512), (101, 256), (201, 128)])
def test_the_width_of_blocks_nests(rows: int, width: int) -> None:
    blocks = Blocks("hash", 50, 1024)
    assert blocks.width(rows) == width
    file = LakeFile("a", {}, bounds={"hash": (width, 2 * width - 1)})
    assert [block for block in range(4) if blocks.touched(file, [block], width)] == [1]
