"""What work costs in CPU seconds, which a busy machine stretches far less than the clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

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
