"""P3, P7: lake tables change in one step, and whoever reads sees one version."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from remuda.lake.commands import app as lake_app
from remuda.model.errors import Conflict
from remuda.spark.lake.coverage import archived
from remuda.spark.lake.partitions import folder
from remuda.spark.lake.table import LakeTable
from remuda.spark.lake.versions import Step
from remuda.spark.pipelines.archive import messages_table
from remuda.spark.pipelines.jobs import JOBS, lake_table
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.source.directory_log import EmbeddedLog
from tests.spark.samples import broker_at, half_sealed, plain, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType().add("number", "long").add("date", "string").add("queue", "string")


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    return LakeTable(str(tmp_path), "things", SCHEMA, ("date", "queue"))


def some(spark: SparkSession, *numbers: int) -> DataFrame:
    rows = [(number, f"2026-01-{number % 3 + 1:02}", "a/b %20ü" if number % 2 else None) for number in numbers]
    return spark.createDataFrame(rows, SCHEMA)


def found(spark: SparkSession, table: LakeTable) -> list[int]:
    return sorted(row["number"] for row in table.read(spark).collect())


def data_files(table: LakeTable) -> list[Path]:
    return list(table.root.glob("date=*/**/*.parquet"))


def test_rows_are_parted_and_come_back_with_their_partitions(spark: SparkSession, table: LakeTable) -> None:
    assert found(spark, table) == []
    table.append(some(spark, 1, 2, 3))
    assert sorted(map(tuple, table.read(spark).collect()), key=str) == sorted(
        map(tuple, some(spark, 1, 2, 3).collect()), key=str
    )
    assert {path.name for path in table.root.glob("date=*")} == {f"date=2026-01-0{day}" for day in (1, 2, 3)}
    assert {file.partition["queue"] for file in table.manifest().files} == {"a/b %20ü", None}


def test_a_batch_is_added_once(spark: SparkSession, table: LakeTable) -> None:
    assert table.append(some(spark, 1), app="x", batch=0)
    assert not table.append(some(spark, 1), app="x", batch=0)
    assert table.append(some(spark, 2), app="x", batch=1)
    assert found(spark, table) == [1, 2]
    assert (table.manifest().last_batch("x"), table.manifest().last_batch("y")) == (1, None)
    assert len(data_files(table)) == 2, "what was not added leaves nothing behind"


@pytest.mark.parametrize(("queues", "files"), [(2, 3 * 2), (40, 40)], ids=["few", "many"])
def test_tasks_write_their_own_files_unless_those_would_be_many_and_small(
    spark: SparkSession, tmp_path: Path, queues: int, files: int
) -> None:
    table = LakeTable(str(tmp_path), "things", SCHEMA, ("date", "queue"))
    rows = spark.range(3 * queues).repartitionByRange(3, "id")
    batch = rows.selectExpr("id as number", "'2026-01-01' as date", f"concat('q', id % {queues}) as queue")
    shuffled = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        table.append(batch)
        before = len(table.manifest().files)
        table.append(batch)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", shuffled or "1")
    assert len(table.manifest().files) - before == files
    assert found(spark, table) == sorted(2 * list(range(3 * queues)))


def test_a_batch_that_another_job_added_meanwhile_is_not_added_again(
    spark: SparkSession, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LakeTable(str(table.root.parent), "things", SCHEMA, table.partitions)
    writing = LakeTable._write

    def write(self: LakeTable, frame: DataFrame) -> object:
        files = writing(self, frame)
        if self is table:
            assert other.append(some(spark, 1), app="x", batch=0)
        return files

    monkeypatch.setattr(LakeTable, "_write", write)
    assert not table.append(some(spark, 1), app="x", batch=0)
    assert found(spark, table) == [1]
    assert len(data_files(table)) == 1


def test_of_two_steps_from_one_version_one_is_taken(spark: SparkSession, table: LakeTable) -> None:
    table.append(some(spark, 1))
    seen = [table.manifest(), table.manifest()]
    assert table.drop(lambda partition: True) == 1
    assert table.append(some(spark, 2))
    (file,) = table.manifest().files
    assert [one.commit(Step(dropped=(file,))) for one in seen] == [False, False]
    newest = [table.manifest(), table.manifest()]
    assert [one.commit(Step(dropped=(file,))) for one in newest] == [True, False]
    assert found(spark, table) == []


def test_a_reader_of_an_older_version_is_not_disturbed(spark: SparkSession, table: LakeTable) -> None:
    table.append(some(spark, 1, 2, 3))
    before = table.read(spark)
    table.rewrite(spark, lambda partition: True, lambda rows: rows.where("number = 2"))
    assert table.drop(lambda partition: partition["date"] == "2026-01-03") == 1
    assert found(spark, table) == []
    assert sorted(row["number"] for row in before.collect()) == [1, 2, 3]
    assert table.vacuum() == 0
    assert table.vacuum(older_than=-1) == 4
    assert not data_files(table)


def test_a_rewrite_of_what_another_job_changed_is_refused(spark: SparkSession, table: LakeTable) -> None:
    table.append(some(spark, 1))

    def meddle(rows: DataFrame) -> DataFrame:
        table.append(some(spark, 4))
        return rows

    with pytest.raises(Conflict, match="Run it again"):
        table.rewrite(spark, lambda partition: partition["date"] == "2026-01-02", meddle)
    assert found(spark, table) == [1, 4]
    assert len(data_files(table)) == 2, "what was not written leaves nothing behind"


def test_a_table_may_gain_columns(spark: SparkSession, table: LakeTable, tmp_path: Path) -> None:
    table.append(some(spark, 1))
    wider = StructType().add("number", "long").add("note", "string").add("date", "string").add("queue", "string")
    newer = LakeTable(str(tmp_path), "things", wider, ("date", "queue"))
    newer.append(spark.createDataFrame([(2, "new", "2026-01-01", "q")], wider))
    assert sorted((row["number"], row["note"]) for row in newer.read(spark).collect()) == [(1, None), (2, "new")]
    assert found(spark, table) == [1, 2], "readers by the older schema go on"
    table.append(some(spark, 3))
    assert found(spark, newer) == [1, 2, 3], "and so do writers"


def test_a_table_can_be_sent_to_where_a_query_runs(spark: SparkSession, table: LakeTable) -> None:
    table.append(some(spark, 1))
    assert found(spark, pickle.loads(pickle.dumps(table))) == [1]


def test_texts_of_any_length_part_a_table(spark: SparkSession, table: LakeTable) -> None:
    """A queue's name has 255 bytes at most, which with their escapes are too many for the name of a folder."""
    names = ["x" * 255, "/" * 255, "é" * 127, "x" * 254, "short", None]
    rows = [(number, "2026-01-01", name) for number, name in enumerate(names)]
    table.append(spark.createDataFrame(rows, SCHEMA))
    assert {file.partition["queue"] for file in table.manifest().files} == set(names)
    assert sorted(map(tuple, table.read(spark).collect())) == rows
    table.rewrite(spark, lambda of: of["queue"] == names[1], lambda old: old.withColumn("number", F.col("number") + 9))
    assert [row["number"] for row in table.read(spark).where(F.col("queue") == F.lit(names[1])).collect()] == [10]
    told = pa.table(DeltaTable(table.root).to_pyarrow_table())
    assert sorted(told["queue"].to_pylist(), key=str) == sorted(names, key=str)


def test_times_are_written_as_every_engine_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """In UTC and in microseconds, whatever the session would do: INT96 tells no zone, and overflows after 2262."""
    table = LakeTable(str(tmp_path), "times", StructType().add("time", "timestamp").add("part", "integer"), ("part",))
    before = str(spark.conf.get("spark.sql.parquet.outputTimestampType"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        table.append(spark.sql("select timestamp_micros(253402300799999999) as time, 1 as part"))
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", before)
    (file,) = table.root.glob("part=*/*.parquet")
    told = pq.ParquetFile(file).read()
    assert told.schema.field("time").type == pa.timestamp("us", "UTC")
    assert told["time"].cast(pa.int64()).to_pylist() == [253402300799999999]


def test_a_folder_that_holds_older_versions_too_is_not_read_as_plain_parquet(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = LakeTable(str(tmp_path), "things", SCHEMA, ("date", "queue"))
    table.append(some(spark, 1, 2))
    table.rewrite(spark, lambda _: True, lambda old: old)
    everything = str(table.root / "**" / "*.parquet")
    readers: list[Callable[[], object]] = [
        lambda: spark.read.parquet(str(table.root)).count(),
        lambda: pq.read_table(table.root),
        lambda: polars.read_parquet(everything),
        lambda: duckdb.execute(f"select count(*) from read_parquet('{everything}')").fetchall(),
    ]
    for read in readers:
        with pytest.raises(Exception, match=r"READ-THIS-TABLE-AS-DELTA|must end with PAR1"):
            read()  # Polars does not say which file it is
    assert found(spark, table) == [1, 2]


def test_p7_small_files_are_put_together_and_the_rows_stay(spark: SparkSession, table: LakeTable) -> None:
    rows = spark.range(400).selectExpr("id as number", "string(id % 2) as date", "string(id % 3) as queue")
    for part in range(4):
        table.append(rows.where(f"number % 4 = {part}").repartition(2))
    before, version = plain(table.read(spark)), table.manifest().version
    gone, made = table.optimize(spark)
    assert (gone, made) == (len(table.manifest().files) + gone - made, 6)
    assert plain(table.read(spark)) == before
    assert table.manifest().version == version + 1
    assert table.optimize(spark) == (0, 0), "what is put together is left alone"
    assert table.vacuum(0) == gone
    assert plain(table.read(spark)) == before


def as_older_remuda(lake: Path) -> None:
    """Lakes were lists of files, version by version."""
    for log in lake.glob("*/_delta_log"):
        newest = lake_table(str(lake), log.parent.name).manifest()
        actions = (json.loads(line) for path in sorted(log.glob("*.json")) for line in path.read_text().splitlines())
        batches = {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
        files = []
        for file in newest.files:
            partition, path = file.partition, file.path
            if "date" in partition and "queue" in file.bounds:  # which named a folder too
                partition = {**partition, "queue": file.bounds["queue"][0]}
                path = f"{folder(partition, ['date', 'queue'])}/{Path(path).name}"
                (log.parent / path).parent.mkdir(exist_ok=True)
                (log.parent / file.path).rename(log.parent / path)
            files.append({"path": path, "partition": partition})
        (log.parent / "_manifests").mkdir()
        manifest = {"version": newest.version, "time": 1.0, "files": files, "batches": batches, "dropped": {}}
        (log.parent / "_manifests" / f"{newest.version:020d}.json").write_text(json.dumps(manifest))
        shutil.rmtree(log)


def test_p7_a_lake_of_the_older_format_becomes_delta_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    half_sealed(data, 600)
    place = Place(url=str(data), lake=str(lake))
    for name in ("archive", "lifecycle", "history"):
        JOBS[name](spark, place)
        as_older_remuda(lake)
    before = {name: plain(lake_table(str(lake), name).read(spark)) for name in ("messages", "events", "lifecycle")}
    log = EmbeddedLog(str(data))
    assert archived(str(lake), log) == log.cut()
    with pytest.raises(Conflict, match=r"can only be read; nothing was changed.*remuda lake convert"):
        lake_table(str(lake), "lifecycle").drop(lambda _: True)
    told = CliRunner().invoke(lake_app, ["convert", str(lake)])
    assert told.exit_code == 0, told.output
    assert "files are in Delta's log" in told.output
    assert not list(lake.glob("*/_manifests"))
    assert {name: plain(lake_table(str(lake), name).read(spark)) for name in before} == before
    assert archived(str(lake), log) == log.cut()
    assert polars.scan_delta(str(lake / "messages")).collect().height == 700
    with broker_at(data) as broker:
        publish(broker, 50, start=700)
    for name in ("archive", "lifecycle", "history"):
        JOBS[name](spark, place)
    assert messages_table(str(lake)).read(spark).count() == 750
    assert "already" in CliRunner().invoke(lake_app, ["convert", str(lake)]).output


def test_p7_a_new_lake_is_delta(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path / "data", 300)
    JOBS["archive"](spark, Place(url=str(tmp_path / "data"), lake=str(tmp_path / "lake")))
    assert len(DeltaTable(tmp_path / "lake" / "messages").to_pyarrow_table()) == 400
    told = CliRunner().invoke(lake_app, ["optimize", str(tmp_path / "lake")])
    assert told.exit_code == 0, told.output
    told = CliRunner().invoke(lake_app, ["vacuum", str(tmp_path / "lake"), "--older-than", "1ms"])
    assert told.exit_code == 0, told.output
    assert len(DeltaTable(tmp_path / "lake" / "messages").to_pyarrow_table()) == 400
