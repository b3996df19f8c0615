"""Rows about what must cost next to nothing: another way to a queue, Python without a compiler, and waiting."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final

from benchmarks.big import child
from benchmarks.children import SINGLE
from benchmarks.contenders.huey_storage import Huey
from benchmarks.drive import drive
from benchmarks.effort import Effort
from benchmarks.results import Result, rate_result
from benchmarks.scratch import scratch

EXCHANGE: Final = "embedded/exchange"
PURE: Final = "embedded/one/1p/os/pure"
IDLE: Final = "bus/idle-100"
_HANDLERS: Final = 100
_PER_SECOND: Final = 10_000


def exchange(effort: Effort) -> Result:
    """A publish through an exchange, as a multiple of one to the same queue by its topic."""
    with scratch() as directory:
        micros = child("ways", directory / "data", max(int(effort.seconds * _PER_SECOND), 100))
    return Result(
        name=EXCHANGE,
        unit="times",
        remuda=round(micros["exchange"] / micros["queue"], 3),
        settings={
            "remuda": "sync=os, bodies of 200 bytes; CPU time of a publish through a topic exchange and to its queue",
            "cpu_us": micros,
            "router": round(micros["router"] / micros["queue"], 3),
        },
    )


def pure(effort: Effort) -> Result:
    """Single messages without anything that was compiled."""
    count = max(int(effort.seconds * _PER_SECOND), 100)
    ours: list[float] = []
    peers: list[float] = []
    for _ in range(effort.rounds):
        with scratch() as directory:
            ours.append(child("single", directory, count, {"REMUDA_PURE": "1"})["rate"])
        with scratch() as directory:
            session = Huey().open(SINGLE, directory)
            peers.append(count / drive(session, SINGLE, count))
            session.close()
    return rate_result(
        PURE,
        statistics.median(ours),
        {"huey": statistics.median(peers)},
        None,
        {"remuda": "REMUDA_PURE=1, otherwise as embedded/one/1p/os/200B", "messages_per_round": count},
    )


def idle(effort: Effort) -> Result:
    """What handlers cost that wait for messages."""
    with scratch() as directory:
        found = child("idle", directory / "data", _HANDLERS)
    return Result(
        name=IDLE,
        unit="% of a core",
        remuda=found["percent"],
        settings={"remuda": f"{_HANDLERS} handlers of as many queues in threads; no message comes", **found},
    )


WAYS_ROWS: Final[dict[str, Callable[[Effort], Result]]] = {EXCHANGE: exchange, PURE: pure, IDLE: idle}
