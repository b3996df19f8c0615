"""Core and log on a simulated disk: publishers, consumers, operators, crashes and clock jumps from one seed (L1-L5, M6,
Q1-Q17, F1-F5). `make simulate` plays more of the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from remuda import native
from remuda.log.log import Log
from tests.simulation.journal import WatchedEngine
from tests.simulation.meetings import Meeting, possible, report
from tests.simulation.runner import Simulation, play

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 240
CHUNK = 20
MET: dict[int, Counter[Meeting]] = {}
"""What the chunks met that were played."""
PROVEN = (778365, 6000047)
"""Seeds that once found a fault which few others find."""
RULED = 120
PROVEN_BY_RULES = (140, 255, 959, 1148)
"""The same, of queues with rules of flow."""

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_the_contract(first: int) -> None:
    play_chunk(first)


def play_chunk(first: int) -> None:
    met = Counter[Meeting]()
    for seed in range(first, first + CHUNK):
        one = Simulation(seed)
        one.play()
        met.update(one.meetings.met)
    MET[first] = met


def test_the_seeds_meet_the_pairs_that_the_contract_allows() -> None:
    """B22: any two options or verbs, before and at a time, at a takeover and at a full disk."""
    for first in range(0, SEEDS, CHUNK):
        if first not in MET:
            play_chunk(first)
    met = sum(MET.values(), Counter[Meeting]())
    assert len(possible() & met.keys()) >= 0.98 * len(possible()), report(met)


@pytest.mark.parametrize("first", range(0, RULED, CHUNK))
def test_no_seed_breaks_the_rules_of_flow(first: int) -> None:
    """F1, F2, F3, F4, F5: never two of a key at once, order per key, no limit passed by the log's time, nothing skipped
    or replaced but what had to be, and nothing that could go waits while somebody is free."""
    for seed in (*range(first, first + CHUNK), *(PROVEN_BY_RULES if not first else ())):
        play(seed, rules=True)


@pytest.mark.parametrize("seed", PROVEN)
def test_a_seed_that_found_a_fault_holds(seed: int) -> None:
    play(seed)


@pytest.mark.skipif(native.tail is None, reason="the others are played in Python already")
def test_no_seed_breaks_the_contract_in_python_alone() -> None:
    """What is compiled, or there in C, is there in Python too; all the other tests play it as it was built."""
    command = [sys.executable, "-m", "tests.simulation", "--first", str(SEEDS), "--seeds", str(2 * CHUNK)]
    environment = {**os.environ, "REMUDA_PURE": "1"}
    played = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert played.returncode == 0, played.stderr[-4000:]
    assert "in Python alone" in played.stdout


def test_small_commits_are_often_written_at_once_and_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation has to see much of both."""
    taken: Counter[str] = Counter()

    def watch(part: type, name: str) -> None:
        way = getattr(part, name)

        def counted(*args: Any) -> Any:
            done = way(*args)
            taken[name] += done is not None and done is not False
            return done

        monkeypatch.setattr(part, name, counted)

    watch(WatchedEngine, "_commit_at_once")
    watch(Log, "frame_single")
    for seed in range(2 * CHUNK):
        play(seed)
    assert taken["_commit_at_once"] >= 40
    assert taken["frame_single"] >= 40 if native.tail is not None else taken["frame_single"] == 0


def test_a_seed_plays_the_same_each_time() -> None:
    one, two = Simulation(11), Simulation(11)
    assert one.play() == two.play()
    assert list(one.trace) == list(two.trace)
