"""A delivery while it is worked through."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
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
        self._guard = threading.Lock()
        self._finished: FinishedCalls = []
        self._running: list[int] = []
        self._waiting = set(range(len(delivery)))
        self._closed = False
        self._renewed = self._began = time.monotonic()

    def begin(self, rows: Sequence[int]) -> bool:
        """A call begins; False if its rows have been given back."""
        with self._guard:
            if self._closed or rows[0] not in self._waiting:
                return False
            self._waiting.difference_update(rows)
            self._running = list(rows)
            self.delivery.begin(rows)
            return True

    def end(self, result: CallResult) -> bool:
        """The call finished; False if somebody else has answered for the delivery."""
        with self._guard:
            if self._closed:
                return False
            self._finished.append((self._running, result))
            self._running = []
            return True

    def close(self) -> DeliveryState | None:
        """Outcome for the delivery; None if somebody else does."""
        with self._guard:
            if self._closed:
                return None
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

    def must_renew(self, now: float) -> bool:
        """Whether the lease needs renewing, which then counts as done."""
        if now < self._renewed + RENEW:
            return False
        self._renewed = now
        return True
