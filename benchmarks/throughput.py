"""Measures a throughput row: all contenders take turns, and the median of each one's rounds counts."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from benchmarks import bare
from benchmarks.contenders.contender import Contender, Session
from benchmarks.contenders.huey_storage import Huey
from benchmarks.contenders.lite_queue import LiteQueue
from benchmarks.contenders.persist_queue import PersistQueue
from benchmarks.contenders.remuda_broker import Remuda
from benchmarks.drive import drive
from benchmarks.effort import Effort
from benchmarks.results import Result, rate_result
from benchmarks.scratch import scratch
from benchmarks.syncs import counted_syncs
from benchmarks.workload import Workload

REMUDA: Final = Remuda()
PEERS: Final[tuple[Contender, ...]] = (Huey(), PersistQueue(), LiteQueue())

_FEWEST: Final = 40
_MOST_UNBATCHED: Final = 20_000
"""So that peers which slow down with what they have stored are not punished for a fast start."""


class Side(msgspec.Struct):
    """One contender in one row: how to run it, how much of it, and what came of it."""

    run: Callable[[int], float]
    count: int
    rates: list[float] = msgspec.field(default_factory=list)

    def measure(self) -> None:
        self.rates.append(self.count / self.run(self.count))

    def rounded(self) -> list[int]:
        return [round(rate) for rate in self.rates]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def measure(workload: Workload, effort: Effort) -> Result:
    settings: dict[str, Any] = {REMUDA.name: REMUDA.describe(workload)}
    sides = {REMUDA.name: _side(REMUDA, workload, effort)}
    syncs_per_message = _syncs_per_message(workload, sides[REMUDA.name].count)
    for peer in PEERS:
        description = peer.describe(workload)
        if description is not None:
            settings[peer.name] = description
            sides[peer.name] = _side(peer, workload, effort)
    limit = _limit(workload, effort, syncs_per_message, sides[REMUDA.name].count)
    for _ in range(effort.rounds):
        for side in (*sides.values(), limit):
            side.measure()
    rates = {name: side.rate for name, side in sides.items()}
    settings |= {
        "limit": bare.describe(workload, syncs_per_message),
        "bound_by": workload.bound_by,
        "remuda_syncs_per_message": round(syncs_per_message, 4),
        "messages_per_round": {name: side.count for name, side in sides.items()} | {"limit": limit.count},
        "rounds": {name: side.rounded() for name, side in sides.items()} | {"limit": limit.rounded()},
    }
    return rate_result(workload.name, rates.pop(REMUDA.name), rates, limit.rate, settings)


@contextmanager
def _session(contender: Contender, workload: Workload) -> Iterator[Session]:
    with scratch() as directory:
        session = contender.open(workload, directory)
        try:
            yield session
        finally:
            session.close()


def _syncs_per_message(workload: Workload, count: int) -> float:
    """Counted in a run of its own, from the first publish to the last acknowledgement."""
    if workload.durability != "always":
        return 0.0
    with _session(REMUDA, workload) as session, counted_syncs() as syncs:
        drive(session, workload, count)
    return syncs.total / count


def _side(contender: Contender, workload: Workload, effort: Effort) -> Side:
    def run(count: int) -> float:
        gc.collect()
        with _session(contender, workload) as session:
            return drive(session, workload, count)

    first = _first_count(contender, workload)
    wanted = int(effort.seconds * first / run(first))
    if not contender.in_batches:
        wanted = min(wanted, _MOST_UNBATCHED)
    return Side(run, _whole(wanted, first))


def _limit(workload: Workload, effort: Effort, syncs_per_message: float, remudas_count: int) -> Side:
    """On disk exactly Remuda's messages: more bytes than it writes would meet the kernel's brake on writers."""

    def run(count: int) -> float:
        with scratch() as directory:
            return bare.run(workload, directory, count, syncs_per_message)

    if workload.durability != "memory":
        return Side(run, remudas_count)
    first = 4 * workload.batch
    return Side(run, _whole(int(effort.seconds * first / run(first)), workload.batch))


def _first_count(contender: Contender, workload: Workload) -> int:
    """Enough messages to guess how many fill a round."""
    batch = workload.batch if contender.in_batches else 1
    least = batch * workload.publishers
    return _whole(max(least, _FEWEST), least)


def _whole(count: int, unit: int) -> int:
    return max(-(-count // unit), 1) * unit
