"""Background work: checkpoints, sealing, retention. It reads and writes files beside the queues, never before them."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.broker.intake import Intake
from remuda.core import snapshot
from remuda.core.operators import Selection
from remuda.log.collect import Collected, collect, drop_settled
from remuda.log.seal import seal
from remuda.model.durations import SECOND
from remuda.model.errors import RemudaError
from remuda.model.state import PARKED

if TYPE_CHECKING:
    from remuda.broker.host import Host

_log = logging.getLogger("remuda.upkeep")
_PAUSE: Final = 0.5
_SNAPSHOTS_PER_LOG: Final = 4
"""A checkpoint is due when the log grew by this many times the size of the last one."""


class Removed(msgspec.Struct, frozen=True):
    """What a round of retention let go (L6)."""

    forgotten: int
    """Dead, invalid and unwanted messages past their time."""
    messages: int
    events: int
    bytes_freed: int


class Upkeep:
    """One thread that wakes now and then."""

    def __init__(self, host: Host, *, volatile: bool) -> None:
        self._host = host
        self._volatile = volatile
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remuda-upkeep", daemon=True)
        self._turn = threading.Lock()
        self._snapshot_bytes = 0
        self._next_collect = host.clock() + host.options.collect_interval
        self._intake = Intake(host)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def checkpoint(self) -> None:
        """Make the next restart begin here."""
        host = self._host
        with self._turn:
            with host.lock:
                mark, state = host.engine.log.mark(), snapshot.save(host.engine.core)
            host.sync()
            host.engine.log.write_checkpoint(mark, state)
            self._snapshot_bytes = len(state)

    def seal(self) -> None:
        """Turn full tail segments into Parquet, or let them go where nothing outlives the process."""
        with self._turn:
            if self._volatile:
                drop_settled(self._host.engine.log, _Kept(self._host, 0))
                return
            for sealed in seal(self._host.engine.log):
                if sealed.failure is not None:
                    _log.error("%s could not be sealed and will be tried again: %s", sealed.segment, sealed.failure)
                for damage in sealed.damages:
                    _log.error("while sealing: %s", damage.describe())

    def collect(self) -> Removed:
        """Let go what has outlived its retention."""
        host, options = self._host, self._host.options
        expired = Selection(states=PARKED, until=host.clock() - options.dead_retention)
        forgotten = sum(host.forget(info.name, expired, "retention").result for info in host.queues())
        # What is forgotten must be on record before its messages go, or a crash would bring back their shells.
        host.sync()
        with host.lock:
            rolled = host.engine.log.roll(host.clock() - options.success_retention)
        if rolled:
            # A segment can be sealed once no checkpoint that is kept needs it.
            self.checkpoint()
            self.checkpoint()
            self.seal()
        with self._turn:
            gone: Collected = collect(host.engine.log, _Kept(host, options.success_retention))
        for failure in gone.failures:
            _log.error("retention could not look through a file: %s", failure)
        removed = Removed(forgotten, gone.messages, gone.events, gone.bytes_freed)
        if forgotten or gone.messages or gone.events:
            _log.info(
                "retention removed %d messages and %d events, %d of them dead: %d bytes freed",
                removed.messages, removed.events, removed.forgotten, removed.bytes_freed,
            )  # fmt: skip
        return removed

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE):
            try:
                self._round()
            except RemudaError as error:
                if not self._stop.is_set():
                    _log.error("upkeep failed and will try again: %s", error)

    def _round(self) -> None:
        host = self._host
        self._intake.run(self._stop.is_set)
        due = max(host.options.checkpoint_bytes, _SNAPSHOTS_PER_LOG * self._snapshot_bytes)
        if host.engine.log.bytes_since_checkpoint >= due:
            self.checkpoint()
            self.seal()
        if host.clock() >= self._next_collect:
            self._next_collect = host.clock() + max(host.options.collect_interval, SECOND)
            self.collect()


class _Kept:
    """Says which messages must stay: those that a queue may need, and those settled too lately."""

    def __init__(self, host: Host, retention: int) -> None:
        with host.lock:
            core = host.engine.core
            live = sorted(run for queue in core.queues.values() for run in queue.live())
            self._recent = core.ledger.settled_since(host.clock() - retention)
        self._runs = _merged(live)
        self._starts = [first for first, _ in self._runs]

    def __call__(self, first: int, last: int) -> list[tuple[int, int]]:
        kept = [run for run in self._recent if run[0] <= last and run[0] + run[1] > first]
        at = max(bisect_left(self._starts, first) - 1, 0)
        while at < len(self._runs) and self._runs[at][0] <= last:
            kept.append(self._runs[at])
            at += 1
        clipped = [(max(start, first), min(start + count, last + 1) - max(start, first)) for start, count in kept]
        return _merged(sorted(run for run in clipped if run[1] > 0))


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted runs, those that touch or overlap as one."""
    merged: list[tuple[int, int]] = []
    for first, count in runs:
        if merged and first <= merged[-1][0] + merged[-1][1]:
            start, length = merged[-1]
            merged[-1] = (start, max(length, first + count - start))
        else:
            merged.append((first, count))
    return merged
