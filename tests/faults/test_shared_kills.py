"""Processes that share a directory are killed at random, and nothing is lost, doubled or delivered again (S5)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.kit import quick_folder

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]
KILLS = 100


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_s5_a_hundred_kills_of_hosts_and_guests_cost_nothing() -> None:
    # What was written outlives a killed process in memory as on a disk.
    with quick_folder() as folder:
        command = [sys.executable, "-m", "tests.faults.shared_nursery", str(folder / "data"), str(KILLS), "7"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    print(told)
    assert told["raised"] == 0, run.stderr
    assert told["published"] > 100
    assert told["settled"] > 50
    assert told["host_kills"] > 5
    assert (told["lost"], told["stored_twice"], told["settled_twice"], told["delivered_again"]) == (0, 0, 0, 0)
    assert told["kills"] >= KILLS
