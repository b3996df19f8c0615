"""The Spark rows still run, and say why where they cannot. No figure is checked: machines are busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import musts, page
from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.spark import logs, stage
from benchmarks.spark.meter import Cost, Times, family, measured, processes, spent
from benchmarks.spark.pipelines import Run, grown
from benchmarks.spark.rows import FULL, MEASURED, PIPELINES, PLANNING, READ, STREAM, attempted, is_measured
from benchmarks.spark.scans import NATIVE, compared
from benchmarks.spark.stage import Stage
from benchmarks.table import SPARK_HEADINGS, spark_cells
from remuda.log.disk.directory import DirectoryDisk
from remuda.log.readers.reader import Reader
from remuda.spark.session.java import JavaMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUSY = "sum(number * number for number in range(3_000_000))"


def test_a_log_holds_what_was_asked_for(tmp_path: Path) -> None:
    logs.fill(tmp_path / "log", 2500)
    found = list(Reader(DirectoryDisk(tmp_path / "log", create=False)).messages())
    bodies = [body for record in found for body in record.messages.bodies]
    assert len(bodies) == len(set(bodies)) == 2500
    assert {len(body) for body in bodies} == {logs.BODY_BYTES}


def test_messages_live_as_often_as_is_told(tmp_path: Path) -> None:
    lived = logs.live(tmp_path / "log", 6000)
    reader = Reader(DirectoryDisk(tmp_path / "log", create=False))
    states: dict[str, int] = {}
    for record in reader.events():
        for event in record.rows:
            states[event.state.value] = states.get(event.state.value, 0) + event.count
    assert lived.events == sum(states.values()) >= 6000
    assert lived.messages == sum(len(record) for record in reader.messages())
    assert states["E"] == 10 * (lived.messages // logs.BATCH)
    assert states["R"] == 40 * (lived.messages // logs.BATCH)
    assert states["F"] == states["S"] + states["E"] + states["R"]


def test_cpu_seconds_of_children_count() -> None:
    def work() -> None:
        subprocess.run([sys.executable, "-c", BUSY], check=True)

    assert measured(work).cpu > 0.05


def test_a_family_is_all_descendants() -> None:
    everyone = {1: Times(0, 1, 0), 2: Times(1, 1, 0), 3: Times(2, 1, 0), 4: Times(1, 1, 0), 9: Times(8, 1, 0)}
    assert sorted(family(1, everyone)) == [1, 2, 3, 4]
    assert sorted(family(2, everyone)) == [2, 3]
    assert family(os.getpid(), processes())[os.getpid()].own > 0


def test_who_ends_meanwhile_is_counted_once() -> None:
    before = {1: Times(0, 10, 0), 2: Times(1, 7, 0)}
    assert spent(before, {1: Times(0, 11, 0), 2: Times(1, 9, 0)}) == 3
    assert spent(before, {1: Times(0, 11, 0), 2: Times(1, 9, 0), 3: Times(1, 5, 0)}) == 8
    assert spent(before, {1: Times(0, 11, 8)}) == 2  # the second ended after one more second
    assert spent(before, {1: Times(0, 11, 0)}) == 1  # nobody waited for it: what it used is not known


def test_the_ratio_is_of_medians_of_cpu_seconds() -> None:
    rounds = {
        "remuda": [Cost(10.0, 30.0), Cost(4.0, 5.0), Cost(4.0, 4.0)],
        NATIVE: [Cost(2.0, 2.0), Cost(2.0, 2.5), Cost(9.0, 9.0)],
    }
    found = compared(READ[0], FULL, rounds, {"remuda": "ours", NATIVE: "theirs"}, "the disk")
    assert (found.remuda, found.peers, found.ratio_to_best_peer) == (2_500_000, {NATIVE: 5_000_000}, 0.5)
    assert found.settings["ratio_by_wall"] == 0.5
    assert not next(musts.findings({found.name: found})).holds
    assert spark_cells(found)[2:] == ["2,500,000", "5,000,000", "", "0.50", "0.50", ""]
    less = compared(READ[0], 1000, rounds, {}, "the disk")
    assert list(musts.findings({less.name: less})) == []  # too few to be judged


@pytest.mark.parametrize(("cpu", "holds"), [(20.0, True), (24.0, False)])
def test_growth_beyond_noise_is_told(cpu: float, holds: bool) -> None:
    small, large = Run(1_000_000, Cost(2.0, 1.0)), Run(10_000_000, Cost(cpu, 10.0), {"messages": 5})
    found = grown(PIPELINES[1], small, large, "ours", "the disk")
    assert found.remuda == cpu / 10
    demands = {finding.demand: finding.holds for finding in musts.findings({found.name: found})}
    assert [ok for demand, ok in demands.items() if demand.endswith("with ten times as many")] == [holds]
    assert found.settings["large"]["messages"] == 5


def test_a_machine_without_java_has_rows_that_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise JavaMissing("there is no Java")

    def measuring(there: Stage, effort: Effort) -> Result:
        raise AssertionError("nothing is made before it is known that Spark starts")

    monkeypatch.setattr(stage, "session", nothing)
    found = attempted(STREAM, "messages/CPU-s", measuring, Stage(), Effort())
    assert not is_measured(found)
    assert found.settings["remuda"] == "not measured: there is no Java"
    assert list(musts.findings({found.name: found})) == []
    text = page.everything([found])
    assert f"| `{STREAM}` | messages/CPU-s | not measured |" in text
    assert f"- {STREAM}: not measured: there is no Java." in text
    assert len(spark_cells(found)) == len(SPARK_HEADINGS) + 2


@pytest.fixture
def tiny(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage on the session of all tests, which it leaves alone."""
    monkeypatch.setattr(stage, "session", lambda name, master: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    held = Stage()
    yield held
    held.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        READ[0],
        PIPELINES[0],
        PLANNING,
        pytest.param(STREAM, marks=pytest.mark.thorough("the others, by the same stage")),
        pytest.param(PIPELINES[1], marks=pytest.mark.thorough("the others, by the same stage")),
    ],
)
def test_rows_of_every_kind_are_measured(tiny: Stage, name: str) -> None:
    found = attempted(name, *MEASURED[name], tiny, Effort(rounds=1, messages=2000))
    assert found.name == name
    assert is_measured(found)
    assert found.remuda > 0
    assert found.settings["bound_by"] in page.everything([found])
