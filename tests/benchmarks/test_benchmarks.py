"""The benchmarks still run, and keep what they promise to keep. No figure is checked: machines are busy."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import big, children, grow, musts, page, throughput, ways
from benchmarks.effort import Effort
from benchmarks.results import Result, load, merged, save
from benchmarks.syncs import counted_syncs
from benchmarks.workload import workloads

FIELDS = ["name", "unit", "remuda", "peers", "ratio_to_best_peer", "limit", "ratio_to_limit", "settings"]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_FEWEST", 16)
    monkeypatch.setattr(throughput, "_MOST_UNBATCHED", 16)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("row", ["embedded/one/8p/always/200B", "embedded/batch100/1p/memory/200B"])
def test_a_row_runs_from_end_to_end(row: str, tmp_path: Path) -> None:
    pytest.importorskip("huey")
    output = tmp_path / "latest.json"
    benchmarks.main(["--only", row, "--quick", "--output", str(output)])
    (found,) = json.loads(output.read_bytes())
    assert list(found) == FIELDS
    assert found["name"] == row
    assert found["remuda"] > 0
    assert found["limit"] > 0
    assert {"huey", "litequeue"} <= set(found["peers"]) <= set(found["settings"])


def test_all_rows_are_named_as_the_results_promise() -> None:
    names = benchmarks.row_names()
    assert len(names) == len(set(names)) == 135
    assert {must.row for must in musts.MUSTS} <= set(names)


def test_a_batch_has_bodies_of_the_size_it_says() -> None:
    for workload in workloads():
        bodies = workload.bodies()
        assert len(set(bodies)) == len(bodies) == workload.batch
        assert {len(body) for body in bodies} == {workload.body_bytes}


def test_syncs_are_counted_and_done(tmp_path: Path) -> None:
    with counted_syncs() as syncs, (tmp_path / "file").open("wb") as file:
        os.fdatasync(file.fileno())
    assert syncs.total == 1


def test_a_restart_after_a_kill_finds_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big, "MANY", 2000)
    result = big.restart(Effort(rounds=1))
    assert result.name == big.RESTART
    assert result.settings["clean_close_s"] > 0


def test_a_backlog_tells_memory_and_latency(tmp_path: Path) -> None:
    found = children.backlog(tmp_path / "broker", 3000)
    assert found["resident_mb"] > 0
    assert set(found["head_ms"]) == {"p50", "p99"}


def test_results_of_other_rows_are_kept(tmp_path: Path) -> None:
    first, second = (Result(name=name, unit="s", remuda=1.0) for name in "ab")
    again = Result(name="a", unit="s", remuda=2.0)
    path = tmp_path / "results.json"
    save(merged([first, second], [again], ["b", "a"]), path)
    assert load(path) == [second, again]


def test_a_row_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "results.json"
    save([Result(name="broken", unit="s", remuda=9.0)], output)
    seen = []

    def measured(name: str, effort: Effort) -> Result:
        seen.append([result.name for result in load(output)])
        return Result(name=name, unit="s", remuda=1.0)

    def broken(effort: Effort) -> Result:
        raise OSError("no disk")

    rows = {"first": partial(measured, "first"), "broken": broken, "last": partial(measured, "last")}
    monkeypatch.setattr(benchmarks, "rows", lambda: rows)
    with pytest.raises(SystemExit, match="kept as they were: broken"):
        benchmarks.main(["--output", str(output)])
    assert seen == [["broken"], ["first", "broken"]]
    assert [(result.name, result.remuda) for result in load(output)] == [("first", 1.0), ("broken", 9.0), ("last", 1.0)]


def test_the_page_keeps_its_words_around_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.rewrite([Result(name="embedded/restart-10M", unit="s", remuda=0.5)], path, page.everything)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| embedded/restart-10M | 0.50 s |" in text
    assert "old" not in text


@pytest.mark.parametrize("what", grow.GROWING)
def test_a_row_about_growth_runs_from_end_to_end(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    growing, _ = grow.GROWING[what]
    monkeypatch.setitem(grow.GROWING, what, (growing, (20, 2000)))
    monkeypatch.setattr(grow, "_OPERATIONS", 5)
    result = grow.measure(what, Effort(rounds=1))
    assert (result.name, list(result.settings["micros"])) == (f"embedded/grow/{what}", ["20", "2000"])
    assert result.remuda > 0


def test_memory_rows_run_from_end_to_end(tmp_path: Path) -> None:
    assert children.delayed(tmp_path / "delayed", 2000)["resident_mb"] > 0
    assert children.batches(tmp_path / "batches", 2000)["head_ms"]["p50"] > 0


def test_other_ways_to_a_queue_are_compared(tmp_path: Path) -> None:
    found = children.ways(tmp_path / "data", 50)
    assert set(found) == {"queue", "exchange", "router"}
    assert min(found.values()) > 0


def test_idle_handlers_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "IDLE_SECONDS", 0.1)
    assert children.idle(tmp_path / "data", 3)["percent"] < 50


def test_python_alone_is_compared_with_huey() -> None:
    pytest.importorskip("huey")
    result = ways.pure(Effort(rounds=1, seconds=0.001))
    assert result.remuda > 0
    assert result.ratio_to_best_peer is not None
