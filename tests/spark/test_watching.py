"""P5: what is told of pipelines while they run, and afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from remuda.spark import commands, restarting
from remuda.spark.commands import app
from remuda.spark.progress import Trouble, note_of, progress, trouble_of
from remuda.spark.query_progress import QueryProgress, summary
from tests.begun import begun
from tests.spark.samples import broker_at, half_sealed, load, play, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def batch(number: int, rows: int, end: int, latest: int, milliseconds: int = 500) -> dict[str, Any]:
    numbers = {"endOffset": json.dumps({"offset": end}), "latestOffset": json.dumps({"offset": latest})}
    source = {"numInputRows": rows, **numbers}
    return {"name": "q", "batchId": number, "batchDuration": milliseconds, "sources": [source]}


def test_batches_that_came_meanwhile_are_told_as_one() -> None:
    told = summary([batch(3, 100, 100, 400), batch(4, 200, 300, 420)])
    assert (told.batch, told.rows, told.rate, told.lag) == (4, 300, 300.0, 120)


@pytest.mark.parametrize("place", [None, "null", "7", '{"logOffset": 3, "mark": "x"}'])
def test_a_source_that_tells_no_numbers_ends_no_telling(place: str | None) -> None:
    one = batch(0, 5, 1, 1)
    one["sources"][0] |= {"endOffset": place, "latestOffset": None}
    assert (summary([one]).rows, summary([one]).lag) == (5, 0)


def test_ingest_that_follows_files_tells_its_progress_and_ends_at_ctrl_c(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources of files tell no number for the end that they have not reached. Rows are counted once, also where Spark
    samples them to put them in order, as it does for more than one task."""
    told_so_far = listen(monkeypatch)
    one_task = str(spark.conf.get("spark.sql.shuffle.partitions"))
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    rows = spark.range(5).selectExpr("id as number", "'orders' as name", "string(id) as body")
    rows.coalesce(1).write.parquet(str(tmp_path / "files"))

    usual = signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        eventually(lambda: bool(told_so_far))
        interrupt_unless(usual)

    command = ["run", "ingest", str(begun(tmp_path / "data")), "--lake", str(tmp_path / "lake"), "--continuous"]
    stopper = threading.Thread(target=interrupt, daemon=True)
    stopper.start()
    ran = CliRunner().invoke(app, [*command, "--set", f"source={tmp_path / 'files'}", "--set", "order=number"])
    stopper.join(200)
    spark.conf.set("spark.sql.shuffle.partitions", one_task)
    assert ran.exit_code == 0, ran.output
    told, done = ran.stdout.splitlines()
    assert told.startswith("ingest-files: batch 0, 5 rows")
    assert done.startswith("ingest is done")


def test_every_row_is_told_once(spark: SparkSession, tmp_path: Path) -> None:
    with broker_at(tmp_path / "data") as broker:
        play(broker)
        lives = load(spark, tmp_path / "data", "lifecycle").count()
        command = ["run", "lifecycle", str(tmp_path / "data"), "--lake", str(tmp_path / "lake"), "--set", "maxRows=40"]
        ran = CliRunner().invoke(app, [*command, "--json"])
    assert ran.exit_code == 0, ran.output
    *told, done = [json.loads(line) for line in ran.stdout.splitlines()]
    assert sum(one["rows"] for one in told) == lives
    assert [one["batch"] for one in told] == sorted({one["batch"] for one in told})
    assert (told[-1]["lag"], done["pipeline"]) == (0, "lifecycle")


@pytest.mark.parametrize(("how", "code"), [("--continuous", 0), ("--once", 128 + signal.SIGINT)])
def test_ctrl_c_while_spark_starts_ends_a_run_quietly(tmp_path: Path, how: str, code: int) -> None:
    """Starting takes Spark some seconds, in which PySpark would answer with a stack."""
    with broker_at(tmp_path / "data") as broker:
        publish(broker, 5)
    command = [sys.executable, "-c", _INTERRUPTED, "run", "archive", str(tmp_path / "data"), "--lake", str(tmp_path)]
    ran = subprocess.run([*command, how], capture_output=True, text=True, timeout=300)
    assert ran.returncode == code, ran.stderr
    told = "" if code == 0 else "archive was interrupted; what was done is kept, run it again for the rest\n"
    assert ran.stderr == told
    assert not (tmp_path / "messages").exists()


_INTERRUPTED = """
import os, signal
import remuda.spark
from remuda.spark import restarting
from remuda.spark.commands import app

begin = remuda.spark.session

def interrupted(*args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return begin(*args, **{**options, "quick": True})

remuda.spark.session = interrupted
app()
"""


@pytest.mark.slow
def test_a_run_that_goes_on_tells_of_what_comes_and_ends_quietly(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, lake = str(tmp_path / "data"), str(tmp_path / "lake")
    behind: list[int] = []
    told_so_far = listen(monkeypatch)
    usual = signal.getsignal(signal.SIGINT)

    def archived(whole: int) -> bool:
        return sum(one.rows for one in told_so_far if one.query == "archive-messages") >= whole

    def feed() -> None:
        """Publish, wait until it is told to be archived, publish again, interrupt."""
        for count, whole in ((100, 100), (150, 250)):
            publish(broker, count)
            broker.runtime.sync()
            eventually(partial(archived, whole))
        eventually(lambda: not any(row["behind"] for row in progress(data, lake)))
        behind.extend(row["behind"] for row in progress(data, lake))
        interrupt_unless(usual)

    with broker_at(Path(data)) as broker:
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        ran = CliRunner().invoke(app, ["run", "archive", data, "--lake", lake, "--continuous", "--json"])
        feeder.join(200)
    assert ran.exit_code == 0, ran.output
    *told, done = [json.loads(line) for line in ran.stdout.splitlines()]
    mine = [one for one in told if one["query"] == "archive-messages"]
    assert sum(one["rows"] for one in mine) == 250
    assert (mine[-1]["lag"], done["pipeline"], set(behind)) == (0, "archive", {0})
    assert ran.stderr == ""


def listen(monkeypatch: pytest.MonkeyPatch) -> list[QueryProgress]:
    """All that is reported of queries from now on."""
    reported: list[QueryProgress] = []
    show = commands._show

    def show_and_note(one: QueryProgress, as_json: bool) -> None:
        show(one, as_json)
        reported.append(one)

    monkeypatch.setattr(commands, "_show", show_and_note)
    return reported


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not true():
        time.sleep(0.1)


def interrupt_unless(usual: object) -> None:
    """Ctrl-C, if somebody listens to it: what is over already leaves the rest of the tests alone."""
    if signal.getsignal(signal.SIGINT) is not usual:
        os.kill(os.getpid(), signal.SIGINT)


def test_p7_a_query_that_fails_is_started_again_and_status_tells(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that goes and comes back costs a pause."""
    monkeypatch.setattr(restarting, "_FIRST", 0.1)
    data, lake, away = tmp_path / "data", str(tmp_path / "lake"), tmp_path / "away"
    half_sealed(data, 300)
    told_so_far = listen(monkeypatch)
    usual = signal.getsignal(signal.SIGINT)
    troubles: list[str] = []

    def act() -> None:
        eventually(lambda: bool(told_so_far))
        data.rename(away)
        eventually(note_of(lake, "history").exists)
        troubles.append(note_of(lake, "history").read_text() if note_of(lake, "history").exists() else "")
        away.rename(data)
        with broker_at(data) as broker:
            publish(broker, 10, start=400)
        eventually(lambda: trouble_of(lake, "history") is None)
        interrupt_unless(usual)

    stopper = threading.Thread(target=act, daemon=True)
    stopper.start()
    ran = CliRunner().invoke(app, ["run", "history", str(data), "--lake", lake, "--continuous"])
    stopper.join(200)
    assert ran.exit_code == 0, ran.output
    assert re.search("there is no directory|cannot be", troubles[0])
    assert progress(str(data), lake)[0]["behind"] == 0


def test_p7_status_tells_what_keeps_a_pipeline_from_going_on(tmp_path: Path) -> None:
    data, lake = begun(tmp_path / "data"), tmp_path / "lake"
    (lake / "_checkpoints" / "archive-messages").mkdir(parents=True)
    note = note_of(str(lake), "archive")
    note.parent.mkdir()
    for ended, then in ((False, "it is tried again"), (True, "it was given up")):
        note.write_bytes(msgspec.json.encode(Trouble(3, "the disk is full", time.time(), ended)))
        told = CliRunner().invoke(app, ["status", str(data), "--lake", str(lake)])
        text = f"archive-messages failed 3 times since its last batch, and {then}: the disk is full"
        assert text in " ".join(told.output.split())
