"""A delivery that is being handled."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Final, Generic, TypeVar

import msgspec

from remuda.bus.broker_api import BaseDelivery, Clock
from remuda.bus.handlers.result import DONE, CallResult
from remuda.model.durations import SECOND

D = TypeVar("D", bound=BaseDelivery[Any])

FinishedCalls = list[tuple[list[int], CallResult]]
"""Rows of a delivery, with the result of their call."""

LINGER: Final = 0.25
"""Seconds after which rows that have not begun are given back, so that another worker can take them."""
RENEW: Final = 10.0
"""Seconds between renewals of a lease; a short lease is renewed more often."""
_PER_LEASE: Final = 3
"""How often a short lease is renewed before it would expire."""


def renewal_interval(lease: int) -> float:
    """The seconds after which a lease of `lease` microseconds is renewed."""
    return min(RENEW, max(lease, 0) / SECOND / _PER_LEASE)


class DeliveryState(msgspec.Struct, frozen=True):
    """How far a delivery has got: finished calls, the rows of the running call, and rows that have not begun."""

    finished: FinishedCalls
    running: list[int]
    waiting: list[int]


class ActiveDelivery(Generic[D]):
    """The state that a worker and the watchdog share: which rows have begun, and which of the two settles the delivery.

    A worker reports each call by `begin` and `ended`, or it takes rows out of `waiting` one by one. The latter needs no
    lock, since a row can be taken out only once.
    """

    def __init__(self, delivery: D) -> None:
        self.delivery = delivery
        self.ended: CallResult | None = None
        """The result of the call that was begun; set by the worker, and collected at the next `begin` or `close`."""
        self.waiting = deque(range(len(delivery)))
        """Rows that have not begun, in order."""
        self.ended_rows: int | None = None
        """For a worker that takes rows out one by one: how many calls have ended, counted from the first row."""
        self._guard = threading.Lock()
        self._finished: FinishedCalls = []
        self._running: list[int] = []
        self._given_back = 0
        self._closed = False
        self._began = time.monotonic()
        self._renew_at: float | None = None

    def begin(self, rows: list[int]) -> bool:
        """A call begins; False if its rows have been given back, or the delivery has been closed."""
        with self._guard:
            if self._closed:
                return False
            if self.ended is not None:
                self._note_ended(self.ended)
            waiting = self.waiting
            if rows[0] not in waiting:
                return False
            if len(rows) == 1:
                waiting.remove(rows[0])
            else:
                begun = set(rows)
                self.waiting = deque([row for row in waiting if row not in begun])
            self._running = rows
            self.delivery.begin(rows)
            return True

    def note(self, row: int, result: CallResult) -> None:
        """Record the result of a row taken out of `waiting`, unless it is plain success."""
        self._finished.append(([row], result))

    def close(self) -> DeliveryState | None:
        """The state to settle; None if the delivery has been closed already, and is settled elsewhere."""
        with self._guard:
            if self._closed:
                return None
            if self.ended is not None:
                self._note_ended(self.ended)
            self._closed = True
            waiting = self._take_waiting()
            if self.ended_rows is not None:
                self._note_taken(self.ended_rows, len(self.delivery) - self._given_back - len(waiting))
            return DeliveryState(self._finished, self._running, waiting)

    def give_back(self, now: float) -> list[int]:
        """The rows to give back because the delivery takes long."""
        if now < self._began + LINGER or not self.waiting:
            return []
        with self._guard:
            if self._closed:
                return []
            rows = self._take_waiting()
            self._given_back += len(rows)
            return rows

    def _take_waiting(self) -> list[int]:
        """Take out all rows. The worker may take some out meanwhile, from the other end."""
        waiting, rows = self.waiting, list[int]()
        while waiting:
            try:
                rows.append(waiting.pop())
            except IndexError:
                break
        rows.reverse()
        return rows

    def _note_taken(self, ended: int, begun: int) -> None:
        """Sort the rows taken out into finished and running. The last may have a result but not be counted as ended."""
        noted = {row for rows, _ in self._finished for row in rows}
        succeeded = [row for row in range(ended) if row not in noted] if noted else list(range(ended))
        if succeeded:
            self._finished.append((succeeded, DONE))
        self._running = [row for row in range(ended, begun) if row not in noted]

    def _note_ended(self, result: CallResult) -> None:
        self._finished.append((self._running, result))
        self._running, self.ended = [], None

    def must_renew(self, now: float, clock: Clock) -> bool:
        """Whether the lease needs renewing. If so, the caller must renew it and call `renewed`."""
        if self._renew_at is None:
            self._renew_at = now + renewal_interval(self.delivery.deadline - clock())
        if now < self._renew_at:
            return False
        self._renew_at = now + RENEW
        return True

    def renewed(self, now: float, lease: int) -> None:
        """The lease was renewed, for `lease` microseconds."""
        self._renew_at = now + renewal_interval(lease)
