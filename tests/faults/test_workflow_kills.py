"""G2, G3: `kill -9` of workers in the middle of workflows, again and again, while runs are started and approved."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from remuda import Bus
from tests.faults.workflow_victim import app

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("REMUDA_WORKFLOW_KILLS", "8"))
RUNS = max(30, KILLS * 5 // 4)
"""Enough that there is work left for each kill."""

pytestmark = [pytest.mark.faults]


def worker(directory: Path, effects: Path, executor: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "WORKFLOW_EFFECTS": str(effects)}
    command = [sys.executable, "-m", "tests.faults.workflow_victim", str(directory), executor]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)


def lines(effects: Path) -> list[str]:
    return effects.read_text().splitlines() if effects.exists() else []


@pytest.mark.parametrize("executor", ["threads", "asyncio", "processes"])
def test_g2_kills_neither_lose_nor_repeat_a_step(executor: str, tmp_path: Path) -> None:
    directory, effects = tmp_path / "data", tmp_path / "effects"
    dice = random.Random(executor)
    names = [f"run-{number}" for number in range(RUNS)]
    with app(str(directory), executor) as bus:  # which starts the runs, and works on none
        for number, name in enumerate(names):
            bus.workflows.start("order", {"name": name, "fails": number % 5 == 0}, id=name)
            bus.publish("approved", name, key=name)
    killed = met = 0
    while killed < KILLS:
        victim = worker(directory, effects, executor)
        seen = len(lines(effects))
        deadline = time.monotonic() + 60
        while len(lines(effects)) < seen + dice.randrange(1, 12) and time.monotonic() < deadline:
            if victim.poll() is not None or _over(effects):
                break
            time.sleep(0.002)
        victim.kill()
        victim.wait(60)
        killed += 1
        met += not _over(effects)
    victim = worker(directory, effects, executor)
    try:
        with app(str(directory), executor) as bus:
            _await_all(bus, names)
            repeated = _check(bus, names, effects, killed)
            print(f"{executor}: {killed} kills, {met} with work left, {RUNS} runs, {repeated} effects repeated")
    finally:
        victim.terminate()
        victim.wait(60)


def _over(effects: Path) -> bool:
    return sum("ship" in line for line in lines(effects)) >= RUNS


def _await_all(bus: Bus, names: list[str]) -> None:
    deadline = time.monotonic() + 240
    left = set(names)
    while left and time.monotonic() < deadline:
        left = {name for name in left if bus.workflows.status(name).state not in ("done", "failed")}
        time.sleep(0.1)
    assert not left, f"stuck: {[(name, bus.workflows.status(name)) for name in sorted(left)[:3]]}"


def _check(bus: Bus, names: list[str], effects: Path, killed: int) -> int:
    made = Counter(lines(effects))
    for number, name in enumerate(names):
        status = bus.workflows.status(name)
        recorded = Counter(one.number for one in bus.workflows.steps(name))
        assert set(recorded.values()) == {1}, f"{name}: a step was recorded twice"
        assert status.state == ("failed" if number % 5 == 0 else "done"), status
        if status.state == "done":
            expected = [f"{name} charge", f"{name} left", f"{name} right", name, 2, 4, f"{name} ship"]
            assert bus.workflows.result(name) == expected
        else:
            assert status.reason == "RuntimeError: no truck. Undone: charge"
        for what in ("charge", "left", "right", "ship", *(["undo"] if number % 5 == 0 else [])):
            assert 1 <= made[f"{name} {what}"] <= 1 + killed, "an effect is repeated only by a kill before its record"
    repeated = sum(count - 1 for count in made.values())
    assert repeated <= 6 * killed, "each kill meets at most what ran at that moment"
    return repeated
