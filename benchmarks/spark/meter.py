"""What work costs in CPU seconds, which a busy machine stretches far less than the clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROCESSES: Final = Path("/proc")


class Cost(msgspec.Struct, frozen=True):
    """Seconds: of all CPUs together, and of the clock."""

    cpu: float
    wall: float


class Times(NamedTuple):
    """What a process has used, and what its children had that it has waited for."""

    parent: int
    own: float
    waited: float


def can_measure() -> bool:
    return (_PROCESSES / "self" / "stat").exists()


class Beside(msgspec.Struct, frozen=True):
    """What work cost besides: bytes that Spark shuffled, memory at most of the driver (its Python and JVM, which in
    a local session is the executor too), and files of rows that it left."""

    shuffled_bytes: int
    driver_peak_mb: int
    files: int


def watched(spark: SparkSession, out: Path, work: Callable[[], object]) -> tuple[Cost, Beside]:
    """What a call of Spark's costs that writes below a folder."""
    drivers = [process for process in family(os.getpid(), processes()) if _is_driver(process)]
    for process in drivers:
        (_PROCESSES / str(process) / "clear_refs").write_text("5")  # its peak begins now
    before = _shuffled(spark)
    cost = measured(work)
    peak = sum(_kb(process, "VmHWM") for process in drivers) // 1024
    left = [path for path in out.rglob("*.parquet") if path.stat().st_size and path.name[0] not in "_.R"]
    return cost, Beside(_shuffled(spark) - before, peak, len([one for one in left if "_delta_log" not in one.parts]))


def memory_mb() -> list[int]:
    """What the driver's processes hold by now."""
    return [_kb(process, "VmRSS") // 1024 for process in family(os.getpid(), processes()) if _is_driver(process)]


def _shuffled(spark: SparkSession) -> int:
    store = spark.sparkContext._jsc.sc().statusStore()
    return int(store.executorSummary("driver").totalShuffleWrite())


def _is_driver(process: int) -> bool:
    return process == os.getpid() or (_PROCESSES / str(process) / "comm").read_text().strip() == "java"


def _kb(process: int, name: str) -> int:
    lines = (_PROCESSES / str(process) / "status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def measured(work: Callable[[], object]) -> Cost:
    """What a call costs in this process and everything it started: the JVM, and Spark's Python workers."""
    before, start = family(os.getpid(), processes()), time.perf_counter()
    work()
    wall = time.perf_counter() - start
    return Cost(cpu=round(spent(before, family(os.getpid(), processes())), 2), wall=round(wall, 2))


def spent(before: Mapping[int, Times], after: Mapping[int, Times]) -> float:
    """CPU seconds between two looks at a family."""
    nothing = Times(0, 0.0, 0.0)
    own = sum(times.own - before.get(process, nothing).own for process, times in after.items())
    waited = sum(times.waited - before.get(process, nothing).waited for process, times in after.items())
    # Of one that ended meanwhile, its parent has the time of its whole life, if it waited for it at all.
    gone = sum(times.own + times.waited for process, times in before.items() if process not in after)
    return own + max(waited - gone, 0.0)


def family(process: int, everyone: Mapping[int, Times]) -> dict[int, Times]:
    """A process and all its descendants."""
    found: dict[int, Times] = {}
    wanted = [process]
    while wanted:
        one = wanted.pop()
        if one in everyone:
            found[one] = everyone[one]
        wanted += [child for child, times in everyone.items() if times.parent == one]
    return found


def processes() -> dict[int, Times]:
    """All that run by now."""
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[int, Times] = {}
    for folder in _PROCESSES.iterdir():
        if folder.name.isdigit():
            try:
                # The name of the program, in parentheses, may hold spaces and parentheses itself.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended between the two looks
            user, system, waited_user, waited_system = map(int, fields[11:15])
            parent = int(fields[1])
            found[int(folder.name)] = Times(parent, (user + system) / ticks, (waited_user + waited_system) / ticks)
    return found
