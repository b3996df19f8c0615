"""P7: many logs into one lake, their rows told apart by a name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pytest
from typer.testing import CliRunner

from remuda.model.errors import Conflict, InvalidOption
from remuda.model.message import Message
from remuda.report import ReportRequest, make_report
from remuda.spark.commands import app
from remuda.spark.lake.coverage import archived
from remuda.spark.lake.versions import LakeFile
from remuda.spark.pipelines.archive import lifecycle_table, messages_table
from remuda.spark.pipelines.jobs import JOBS, history_table, metrics_table
from remuda.spark.pipelines.streaming_queries import Place, checkpoint_of
from remuda.spark.progress import progress
from remuda.spark.source.directory_log import EmbeddedLog
from tests.spark.samples import broker_at, finish, load, plain, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CITIES = {"paris": 30, "london": 50}


def at(root: Path, city: str | None, **options: str) -> Place:
    return Place(url=str(root / (city or "other")), lake=str(root / "lake"), log=city, options=options)


def fill(root: Path, city: str, count: int, start: int = 0) -> None:
    with broker_at(root / city) as broker:
        publish(broker, count, start=start)
        finish(broker)
        broker.publish([Message("things", city.encode(), object="tree", key="1")])
        broker.publish([Message("things", b"%d" % start, object="tree", key="1")])


def test_p7_several_logs_share_a_lake_and_keep_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets, keys and windows are the same in both; each log's rows are those it would have alone."""
    lake, names = str(tmp_path / "lake"), ("archive", "lifecycle", "history", "metrics")
    tables = (lifecycle_table(lake), history_table(lake), metrics_table(lake))
    fill(tmp_path, "paris", CITIES["paris"])
    for name in names:
        JOBS[name](spark, at(tmp_path, "paris"))
    of_paris = {file.path for table in tables for file in table.manifest().files}
    fill(tmp_path, "london", CITIES["london"])
    JOBS["lifecycle"](spark, at(tmp_path, "london"))
    fill(tmp_path, "london", 5, start=50)
    for name in names:
        JOBS[name](spark, at(tmp_path, "london"))
    for table in tables:
        for file in table.manifest().files:
            assert file.may_hold("log", "paris") == (file.path in of_paris), "nobody rewrites another log's files"
    for city in CITIES:
        lives = lifecycle_table(lake).read(spark).where(f"log = '{city}'").drop("date", "log")
        assert plain(lives) == plain(load(spark, tmp_path / city, "lifecycle"))
        assert archived(lake, EmbeddedLog(str(tmp_path / city))) == EmbeddedLog(str(tmp_path / city)).cut()
        rows = progress(str(tmp_path / city), lake, city)
        assert {row["pipeline"]: row["behind"] for row in rows} == dict.fromkeys(
            (f"archive-events@{city}", f"archive-messages@{city}", f"history-messages@{city}",
             f"lifecycle-lifecycle@{city}", f"metrics-lifecycle@{city}"), 0,
        )  # fmt: skip
    by_polars = polars.scan_delta(f"{lake}/messages").group_by("log", "queue").len().collect()
    assert {row[:2]: row[2] for row in by_polars.iter_rows()} == {
        ("paris", "orders"): 30, ("paris", "things"): 2, ("london", "orders"): 55, ("london", "things"): 4,
    }  # fmt: skip
    versions = {row["log"]: (row["version"], row["messages"]) for row in history_table(lake).read(spark).collect()}
    assert versions == {"paris": (2, 2), "london": (4, 4)}
    counted = metrics_table(lake).read(spark).groupBy("log").sum("published", "succeeded").collect()
    assert {row[0]: (row[1], row[2]) for row in counted} == {"paris": (32, 30), "london": (59, 55)}
    assert make_report(ReportRequest(lake=lake)).messages == 91
    ran = CliRunner().invoke(app, ["status", str(tmp_path / "paris"), "--lake", lake, "--log", "paris", "--json"])
    assert '"archive-messages@paris"' in ran.output
    ran = CliRunner().invoke(app, ["status", str(tmp_path / "paris"), "--lake", lake])
    assert "--log london or paris" in ran.output
    JOBS["retention"](spark, Place(url=str(tmp_path / "paris"), lake=lake, options={"success": "0s"}))
    left = messages_table(lake).read(spark).groupBy("log", "queue").count().collect()
    assert sorted(map(tuple, left)) == [("london", "things", 4), ("paris", "things", 2)]


def test_p7_a_log_is_archived_once_under_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """Where a checkpoint is lost, the others go on."""
    for city in CITIES:
        fill(tmp_path, city, 5)
        JOBS["archive"](spark, at(tmp_path, city))
    lake = str(tmp_path / "lake")
    shutil.rmtree(checkpoint_of(lake, "archive", "messages", "paris"))
    with pytest.raises(Conflict, match=r"filled by a query whose checkpoint is gone.*give this one a name"):
        JOBS["archive"](spark, at(tmp_path, "paris"))
    with pytest.raises(Conflict, match="filled by a query whose checkpoint is gone"):
        JOBS["archive"](spark, Place(url=str(tmp_path / "paris"), lake=lake))
    fill(tmp_path, "london", 5, start=5)
    JOBS["archive"](spark, at(tmp_path, "london"))
    assert messages_table(lake).read(spark).where("log = 'london' and queue = 'orders'").count() == 10


@pytest.mark.parametrize(("name", "log"), [("archive", "a@b"), ("history", "x" * 32), ("archive", ""), ("replay", "a")])
def test_p7_a_log_s_name_is_checked_at_the_door(spark: SparkSession, tmp_path: Path, name: str, log: str) -> None:
    with pytest.raises(InvalidOption, match="name"):
        JOBS[name](spark, Place(url=str(tmp_path), lake=str(tmp_path / "lake"), log=log))
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("bounds", "held"),
    [
        ({}, {None, "a", "b"}), ({"log": ("a", "a")}, {"a"}), ({"log": (None, None)}, {None}),
        ({"log": ("a", "b")}, {"a", "b"}), ({"log": ("b", "c")}, {"b"}),
    ],
)  # fmt: skip
def test_p7_a_file_may_hold_what_its_statistics_allow(bounds: dict[str, tuple[str, str]], held: set[str]) -> None:
    file = LakeFile("f", {}, bounds=bounds)
    assert {one for one in (None, "a", "b") if file.may_hold("log", one)} == held
