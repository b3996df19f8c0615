"""Runs that sleep, in a process of their own: what they cost in memory, and how soon a restart has them again.

python -m benchmarks.workflows.sleeping STEP DIRECTORY COUNT
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.scratch import scratch
from remuda import Bus, Run

MEMORY: Final = "workflows/sleeping-memory"
RESTART: Final = "workflows/sleeping-restart"
_QUEUE: Final = "workflow.sleeper"
_BATCH: Final = 1000
_FEW: Final = 1000
_ROOT: Final = Path(__file__).resolve().parents[2]


def _app(directory: Path) -> Bus:
    bus = Bus(directory, sync="os")

    @bus.workflow(name="sleeper", threads=2)
    def sleeper(run: Run, number: int) -> int:
        run.sleep("30d")
        return number

    return bus


def measured(directory: Path, count: int) -> dict[str, Any]:
    """Let so many runs fall asleep, and close."""
    bus = _app(directory)
    with bus:
        for first in range(0, count, _BATCH):
            bus.publish_many("workflow.sleeper", list(range(first, first + _BATCH)))
        bus.start()
        begin = time.perf_counter()
        while bus.broker.queue(_QUEUE).delayed < count:
            time.sleep(0.02)
        seconds = time.perf_counter() - begin
        gc.collect()
        return {
            "resident": _resident(), "threads": threading.active_count(), "per_second": round(count / seconds),
        }  # fmt: skip


def restarted(directory: Path, count: int) -> dict[str, Any]:
    """Start again, and see that all of them sleep."""
    begin = time.perf_counter()
    bus = _app(directory)
    with bus:
        bus.start()
        assert bus.broker.queue(_QUEUE).delayed == count
        seconds = time.perf_counter() - begin
        gc.collect()
        return {"seconds": round(seconds, 3), "resident": _resident(), "threads": threading.active_count()}


def sleeping(effort: Effort, what: str) -> Result:
    """Bytes for each of a hundred thousand that sleep, or seconds until they are there again."""
    count = 100_000 if effort.seconds >= 0.3 else 5000
    with scratch() as directory:
        few, many = (_child("measured", directory / str(one), one) for one in (_FEW, count))
        again = [_child("restarted", directory / str(count), count) for _ in range(effort.rounds)]
        base = _child("restarted", directory / str(_FEW), _FEW)
    settings = {
        "sleeping": count,
        "threads": many["threads"],
        "threads_with_1000": few["threads"],
        "fell_asleep_per_second": many["per_second"],
        "bytes_after_restart": _each(again[0], base, count),
    }
    if what == MEMORY:
        return Result(name=MEMORY, unit="bytes", remuda=_each(many, few, count), settings=settings)
    return Result(name=RESTART, unit="s", remuda=min(one["seconds"] for one in again), settings=settings)


def _each(many: dict[str, Any], few: dict[str, Any], count: int) -> float:
    grown: int = many["resident"] - few["resident"]
    return round(grown / (count - _FEW))


def _child(step: str, directory: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.workflows.sleeping", step, str(directory), str(count)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{step} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    found = {"measured": measured, "restarted": restarted}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    print(msgspec.json.encode(found).decode())
