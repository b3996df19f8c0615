"""B4, B8: `kill -9` of a worker in the middle of a handler. Nothing is lost, and attempts are counted right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.bus_victim import app

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.faults]


def worker(directory: Path, notes: Path, executor: str, mode: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.faults.bus_victim", str(directory), str(notes), executor, mode]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths})


def calls(notes: Path) -> list[tuple[str, int, int]]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(name, int(attempt), int(process)) for name, attempt, process in map(str.split, lines)]


def wait_for(notes: Path, name: str, process: subprocess.Popen[bytes]) -> int:
    """The process in which the call of this name began."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for told, _, where in calls(notes):
            if told == name:
                return where
        assert process.poll() is None, "the worker ended by itself"
        time.sleep(0.01)
    raise AssertionError(f"{name} never began")


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("executor", ["threads", "asyncio", "processes"])
def test_a_worker_killed_in_mid_handler_costs_an_attempt_and_nothing_else(executor: str, tmp_path: Path) -> None:
    """B4, B8: the poisonous message is tried again with its second attempt; all others are handled."""
    directory, notes = tmp_path / "data", tmp_path / "notes"
    victim = worker(directory, notes, executor, "hang")
    where = wait_for(notes, "poison", victim)
    time.sleep(0.2)
    victim.send_signal(signal.SIGKILL)
    victim.wait(60)
    heir = worker(directory, notes, executor, "go on")
    assert heir.wait(100) == 0
    told = [call for call in calls(notes) if call[0] != "done"]
    assert [attempt for name, attempt, _ in told if name == "poison"] == [1, 2]
    names = Counter(name for name, _, _ in told)
    assert set(names) == {
        *(f"job-{number}" for number in range(40) if number != 20), "poison",
        *(f"other-{number}" for number in range(40)),
    }  # fmt: skip
    for name in names:
        attempts = [attempt for told_name, attempt, _ in told if told_name == name]
        if executor == "processes" and name.startswith("job"):
            assert attempts in ([1], [2], [1, 2]), "one kill costs one attempt at most"
        else:
            assert attempts in ([1], [1, 2]), "an attempt that was never made does not count"
    deadline = time.monotonic() + 60
    while not is_gone(where) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert is_gone(where), "a process of handlers must not outlive the worker that it belonged to"
    with app(str(directory), executor) as bus:
        for queue in ("jobs", "others"):
            info = bus.broker.queue(queue)
            assert (info.size, info.dead) == (0, 0)
