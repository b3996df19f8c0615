"""The bus rows still run, and a side that cannot keep up costs no more than its own figure."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from benchmarks import musts, page
from benchmarks.bus import failing, player, rows
from benchmarks.bus.player import Player, Refused
from benchmarks.bus.stage import Request
from benchmarks.bus.tally import FileTally, Stuck, Tally, ThreadTally
from benchmarks.effort import Effort
from benchmarks.results import Result, latency_result, rate_result

SHORT = Effort(rounds=1, seconds=0.01)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in ("huey", "dramatiq", "celery"):
        pytest.importorskip(peer)
    monkeypatch.setattr(rows, "_FIRST", 3)
    monkeypatch.setattr(rows, "_GUESS", 10)
    monkeypatch.setattr(rows, "_MOST", 20)


@pytest.mark.usefixtures("tiny")
def test_throughput_is_measured_for_all_sides() -> None:
    found = rows.BUS_ROWS["bus/processes/batch"](SHORT)
    assert found.name == "bus/processes/batch"
    assert found.remuda > 0
    assert found.settings["always"].keys() == {"remuda", "huey"}
    assert found.settings["durable_peers"] == ["huey"]
    assert found.peers["dramatiq"] is None
    assert found.settings["dramatiq"].startswith("not measured: StubBroker lives in one process")
    assert list(musts.findings({found.name: found}))


@pytest.mark.thorough("the sides are those of the throughput")
@pytest.mark.usefixtures("tiny")
def test_latency_is_measured_for_all_sides() -> None:
    found = rows.BUS_ROWS[rows.LATENCY](SHORT)
    assert found.unit == "ms"
    assert found.remuda > 0
    assert all(found.peers.values())
    assert found.settings["p99_ms"]["remuda"] >= found.remuda
    assert found.settings["p50_ms_of_other_executors"].keys() == {"asyncio", "processes"}


def test_a_side_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "LIMIT", 0.01)
    side = Player("remuda", "threads", "os", tmp_path / "side")
    try:
        with pytest.raises(Refused, match=r"no answer within 0\.01 s"):
            side.ready()
    finally:
        side.end()
        side.end()


def test_a_side_that_ends_is_told(tmp_path: Path) -> None:
    side = Player("nobody", "threads", "os", tmp_path / "side")
    try:
        with pytest.raises(Refused, match="nobody"):
            side.ready()
        with pytest.raises(Refused, match="its process ended"):
            side.ask(Request(1))
    finally:
        side.end()


@pytest.mark.parametrize("kind", ["threads", "file"])
def test_a_tally_knows_the_last_of_many(kind: str, tmp_path: Path) -> None:
    tally: Tally = ThreadTally() if kind == "threads" else FileTally(tmp_path / "tally")
    for _ in range(2):
        tally.expect(20)
        start = time.perf_counter()
        threads = [threading.Thread(target=tally.hit) for _ in range(20)]
        for thread in threads:
            thread.start()
        assert start < tally.wait(60) < time.perf_counter()
        for thread in threads:
            thread.join()
    tally.expect(2)
    tally.hit()
    with pytest.raises(Stuck, match=r"1 of 2 messages were handled within 0\.01 s"):
        tally.wait(0.01)


def test_ratios_leave_out_who_was_not_measured() -> None:
    assert rate_result("bus/threads/one", 50.0, {"huey": 10.0, "celery": None}, None, {}).ratio_to_best_peer == 5
    assert latency_result(rows.LATENCY, 2.0, {"huey": None, "dramatiq": 3.0}, {}).ratio_to_best_peer == 1.5
    assert latency_result(rows.LATENCY, 2.0, {"huey": None}, {}).ratio_to_best_peer is None


def test_the_pages_show_the_bus() -> None:
    rate = Result(
        name="bus/threads/one",
        unit="messages/s",
        remuda=1000.0,
        peers={"huey": 100.0, "dramatiq": None},
        settings={"dramatiq": "not measured: gone", "durable_peers": ["huey"], "always": {"remuda": 500.0}},
    )
    late = Result(name=rows.LATENCY, unit="ms", remuda=0.25, peers={"huey": 3.0}, settings={"p99_ms": {"huey": 8.0}})
    text = page.everything([rate, late])
    assert "| `bus/threads/one` | 1,000 | 500 | 100 |" in text
    assert "- bus/threads/one: dramatiq not measured: gone." in text
    assert "| `bus/latency` p50 | 0.25 |  | 3.00 |" in text
    assert "| `bus/latency` p99 |  |  | 8.00 |" in text
    assert "| bus/threads/one, durable: ≥ 6 times best durable peer | 10.0 times huey | yes |" in text
    assert "target" not in page.comparison([rate, late])


def test_a_failing_message_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "_PER_SECOND", 1000)
    found = rows.BUS_ROWS[failing.FAILING](SHORT)
    assert found.remuda > found.settings["µs_of_success"] > 0
    assert "(`bus/failing`)" in page.everything([found])
    assert [finding.row for finding in musts.findings({found.name: found})] == [failing.FAILING]
