"""Core and log on a simulated disk: publishers, consumers, operators, crashes and clock jumps from one seed (L1-L5, M6,
Q1-Q17). `make simulate` plays more of the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from remuda import native
from remuda.core.consuming import Consuming
from remuda.core.publishing import Publishing
from remuda.log.log import Log
from tests.simulation.journal import WatchedEngine
from tests.simulation.runner import Simulation, play

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 240
CHUNK = 20

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_the_contract(first: int) -> None:
    for seed in range(first, first + CHUNK):
        play(seed)


@pytest.mark.skipif(native.tail is None, reason="the others are played in Python already")
def test_no_seed_breaks_the_contract_in_python_alone() -> None:
    """What is there in C is there in Python too, and all the other tests play it in C."""
    command = [sys.executable, "-m", "tests.simulation", "--first", str(SEEDS), "--seeds", str(2 * CHUNK)]
    environment = {**os.environ, "REMUDA_PURE": "1"}
    played = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert played.returncode == 0, played.stderr[-4000:]
    assert "in Python alone" in played.stdout


def test_the_short_cuts_are_taken_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each does in the usual case what the long way does, so the simulation has to see much of it."""
    taken: Counter[str] = Counter()

    def watch(part: type, name: str) -> None:
        way = getattr(part, name)

        def counted(*args: Any) -> Any:
            done = way(*args)
            taken[name] += done is not None and done is not False
            return done

        monkeypatch.setattr(part, name, counted)

    watch(Publishing, "publish_plainly")
    watch(WatchedEngine, "_commit_at_once")
    watch(Log, "frame_single")
    for name in ("pull_plainly", "send_plainly", "_complete_plainly", "_retry_plainly"):
        watch(Consuming, name)
    for seed in range(2 * CHUNK):
        play(seed)
    framed = taken.pop("frame_single")
    assert framed >= 40 if native.tail is not None else framed == 0, "records that are encoded in C, if it is there"
    served, retried = taken.pop("send_plainly") - taken["pull_plainly"], taken.pop("_retry_plainly")
    assert min(taken.values()) >= 40, taken
    assert retried >= 5, "answers that ask for another attempt after a while"
    assert served >= 5, "pulls that waited, served by a publish that took the short cut"


def test_a_seed_plays_the_same_each_time() -> None:
    one, two = Simulation(11), Simulation(11)
    assert one.play() == two.play()
    assert list(one.trace) == list(two.trace)
