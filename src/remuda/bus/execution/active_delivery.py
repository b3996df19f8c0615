"""A delivery while it is worked through."""

from __future__ import annotations

import threading
import time
from typing import Any, Final, Generic, TypeVar

import msgspec

from remuda.bus.broker_api import BaseDelivery
from remuda.bus.handlers.result import CallResult

D = TypeVar("D", bound=BaseDelivery[Any])

FinishedCalls = list[tuple[list[int], CallResult]]
"""Rows of a delivery, and how the call for them ended."""

LINGER: Final = 0.25
"""After so many seconds, what has not begun goes back, so that another worker can take it."""
RENEW: Final = 10.0
"""How often the lease of a delivery in work is renewed, in seconds."""


class DeliveryState(msgspec.Struct, frozen=True):
    """A delivery as it was left: calls that finished, one that runs, rows that have not begun."""

    finished: FinishedCalls
    running: list[int]
    waiting: list[int]


class ActiveDelivery(Generic[D]):
    """Where a worker and whoever watches it agree on which rows have begun, and on which of them answers."""

    def __init__(self, delivery: D) -> None:
        self.delivery = delivery
        self.ended: CallResult | None = None
        """How the call that was begun has ended. Only the worker says so, and the next who asks takes it from here."""
        self._guard = threading.Lock()
        self._finished: FinishedCalls = []
        self._running: list[int] = []
        self._waiting = set(range(len(delivery)))
        self._closed = False
        self._renewed = self._began = time.monotonic()

    def begin(self, rows: list[int]) -> bool:
        """A call begins; False if its rows have been given back, or somebody else has answered for the delivery."""
        with self._guard:
            if self._closed:
                return False
            if self.ended is not None:
                self._note_ended(self.ended)
            waiting = self._waiting
            if rows[0] not in waiting:
                return False
            if len(rows) == 1:
                waiting.remove(rows[0])
            else:
                waiting.difference_update(rows)
            self._running = rows
            self.delivery.begin(rows)
            return True

    def close(self) -> DeliveryState | None:
        """What to answer for the delivery; None if somebody else does."""
        with self._guard:
            if self._closed:
                return None
            if self.ended is not None:
                self._note_ended(self.ended)
            self._closed = True
            return DeliveryState(self._finished, self._running, sorted(self._waiting))

    def give_back(self, now: float) -> list[int]:
        """Rows to give back because the delivery takes long."""
        if now < self._began + LINGER or not self._waiting:
            return []
        with self._guard:
            if self._closed:
                return []
            rows, self._waiting = self._waiting, set()
            return sorted(rows)

    def _note_ended(self, result: CallResult) -> None:
        self._finished.append((self._running, result))
        self._running, self.ended = [], None

    def must_renew(self, now: float) -> bool:
        """Whether the lease needs renewing, which then counts as done."""
        if now < self._renewed + RENEW:
            return False
        self._renewed = now
        return True
