"""Which workers a broker has: each tells of itself every other second, and hears what it shall do."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import msgspec

from remuda.broker.embedded.clock import Clock
from remuda.model.errors import InvalidOption, NotFound
from remuda.model.operations.worker_orders import INTERVAL, Cancellation, Intake, Orders, Worker, WorkerOrder

_audit = logging.getLogger("remuda.audit")

SILENT: Final = 4 * INTERVAL
"""Seconds without a sign after which a worker counts as silent: it is stuck, cut off or dead."""
FORGOTTEN: Final = 120.0
"""Seconds without a sign after which it is no longer listed."""
_MOST: Final = 10_000


class _Entry:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.at = time.monotonic()
        self.order: WorkerOrder | None = None
        """What it shall do, until it does."""


class Roster:
    """The workers by id, in memory: a new host hears of all of them within seconds. Safe to use from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._cancelling: dict[tuple[str, int], tuple[Cancellation, int]] = {}
        """By queue and offset, with the attempt that was running then."""
        self._lock = threading.Lock()

    def tell(self, worker: Worker) -> Orders:
        """A worker tells of itself, and gets its orders."""
        told = msgspec.structs.replace(worker, told=self._clock(), silent=False)
        with self._lock:
            self._drop_forgotten()
            entry = self._entries.get(told.id)
            if entry is None:
                if len(self._entries) >= _MOST:
                    raise InvalidOption(f"a broker lists at most {_MOST} workers; this one is not listed, but works")
                entry = self._entries[told.id] = _Entry(told)
            entry.worker, entry.at = told, time.monotonic()
            if entry.order is not None and _obeyed(entry.order, told.intake):
                entry.order = None
            return Orders(entry.order, self._to_cancel(told))

    def leave(self, id: str) -> None:
        """A worker has ended."""
        with self._lock:
            self._entries.pop(id, None)

    def all(self) -> list[Worker]:
        """The oldest first."""
        with self._lock:
            self._drop_forgotten()
            limit = time.monotonic() - SILENT
            found = [
                msgspec.structs.replace(entry.worker, silent=True) if entry.at < limit else entry.worker
                for entry in self._entries.values()
            ]
        return sorted(found, key=lambda worker: (worker.since, worker.id))

    def order(self, id: str, order: WorkerOrder, who: str) -> None:
        """The worker hears it with its next sign."""
        with self._lock:
            self._drop_forgotten()
            entry = self._entries.get(id)
            if entry is None:
                raise NotFound(f"there is no worker {id!r}; it may have ended. remuda workers lists those that work")
            entry.order = None if _obeyed(order, entry.worker.intake) else order
        _audit.info("%s: %s worker %s (process %d on %s)", who, order, id, entry.worker.process, entry.worker.host)

    def cancel(self, wanted: Cancellation, attempt: int) -> bool:
        """The queue's workers hear it with their next sign, also one that takes the message over. False if the queue
        has no worker."""
        with self._lock:
            limit = time.monotonic() - SILENT
            at_work = any(
                queue.name == wanted.queue
                for entry in self._entries.values()
                if entry.at >= limit
                for queue in entry.worker.queues
            )
            if at_work:
                if len(self._cancelling) >= _MOST:
                    self._cancelling.pop(next(iter(self._cancelling)))
                self._cancelling.setdefault((wanted.queue, wanted.offset), (wanted, attempt))
        return at_work

    def cancelling(self) -> list[tuple[Cancellation, int]]:
        """What is to be cancelled and may not have ended yet, with the attempt that was running then."""
        if not self._cancelling:
            return []
        with self._lock:
            return list(self._cancelling.values())

    def cancelled(self, wanted: Cancellation) -> None:
        """It has ended, or runs no more."""
        with self._lock:
            self._cancelling.pop((wanted.queue, wanted.offset), None)

    def _to_cancel(self, worker: Worker) -> tuple[Cancellation, ...]:
        """All of its queues until they have ended: it may take a message over later than it heard of it."""
        if not self._cancelling:
            return ()
        queues = {queue.name for queue in worker.queues}
        return tuple(wanted for wanted, _ in self._cancelling.values() if wanted.queue in queues)

    def _drop_forgotten(self) -> None:
        limit = time.monotonic() - FORGOTTEN
        for id in [id for id, entry in self._entries.items() if entry.at < limit]:
            del self._entries[id]


def _obeyed(order: WorkerOrder, intake: Intake) -> bool:
    match order:
        case WorkerOrder.PAUSE:
            return intake is not Intake.OPEN
        case WorkerOrder.RESUME:
            return intake is not Intake.PAUSED
        case WorkerOrder.STOP:
            return intake is Intake.STOPPING
