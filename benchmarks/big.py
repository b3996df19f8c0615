"""The rows about ten million messages and more: a restart after they were settled, and memory while they wait."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.children import LIVE
from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.scratch import scratch

MANY: Final = 10_000_000
FEW: Final = 100_000
"""More than a broker keeps in memory of what came last, so that the oldest is read from the log here too."""
RESTART: Final = "embedded/restart-10M"
BACKLOG: Final = "embedded/backlog-10M"
DELAYED: Final = "embedded/delayed-10M"
BATCHES: Final = "embedded/batches-100M"

_ROOT: Final = Path(__file__).parent.parent


def restart(effort: Effort) -> Result:
    with scratch() as directory:
        built = child("settle-and-die", directory, MANY, ends_with=-signal.SIGKILL)
        killed = child("restart", directory, LIVE)["seconds"]
        clean = [child("restart", directory, LIVE)["seconds"] for _ in range(effort.rounds)]
    return Result(
        name=RESTART,
        unit="s",
        remuda=killed,
        settings={
            "remuda": "open_broker after SIGKILL, 10 M messages settled and 10 k waiting, sync=os, files still cached",
            "clean_close_s": statistics.median(clean),
            "bound_by": "reading the last checkpoint and what the log holds since",
            **built,
        },
    )


def backlog(effort: Effort) -> Result:
    with scratch() as directory:
        few = child("backlog", directory / "few", FEW)
        many = child("backlog", directory / "many", MANY)
    return Result(
        name=BACKLOG,
        unit="MB resident",
        remuda=many["resident_mb"],
        settings={
            "remuda": "10 M messages of 200 bytes wait in one pull queue, sync=os; memory of the whole process",
            "peak_mb": many["peak_mb"],
            "resident_mb_with_100k_waiting": few["resident_mb"],
            "head_ms": many["head_ms"],
            "head_ms_with_100k_waiting": few["head_ms"],
            "published_per_second": many["published_per_second"],
            "bound_by": "the interpreter, pyarrow and their caches",
        },
    )


def delayed(effort: Effort) -> Result:
    with scratch() as directory:
        many = child("delayed", directory, MANY)
    return Result(
        name=DELAYED,
        unit="MB resident",
        remuda=many["resident_mb"],
        settings={
            "remuda": "10 M messages of one byte, each with a delay of its own, sync=os; memory of the whole process",
            "bound_by": "the numbers of each message",
            **many,
        },
    )


def batches(effort: Effort) -> Result:
    with scratch() as directory:
        many = child("batches", directory, 10 * MANY)
    return Result(
        name=BATCHES,
        unit="MB resident",
        remuda=many["resident_mb"],
        settings={
            "remuda": "100 M messages of one byte wait, published in batches of 1,000, sync=os; memory of the process",
            "bound_by": "the interpreter and its caches",
            **many,
        },
    )


BIG_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {
    RESTART: restart,
    BACKLOG: backlog,
    DELAYED: delayed,
    BATCHES: batches,
}


def child(
    step: str, directory: Path, count: int, environment: Mapping[str, str] | None = None, ends_with: int = 0
) -> dict[str, Any]:
    """What a step in a process of its own has found."""
    command = [sys.executable, "-m", "benchmarks.children", step, str(directory), str(count)]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != ends_with:
        raise RuntimeError(f"{step} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found
