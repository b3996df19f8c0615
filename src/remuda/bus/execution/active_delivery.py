"""A delivery that is being handled."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from remuda.bus.broker_api import BaseDelivery, Clock
from remuda.bus.execution.cancelling import charged
from remuda.bus.handlers.result import DONE, CallResult
from remuda.model.values.durations import SECOND

if TYPE_CHECKING:
    import asyncio

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


class CallInHand(msgspec.Struct, frozen=True):
    """A call that runs: rows of a delivery, and since when by `time.monotonic`."""

    delivery: BaseDelivery[Any]
    rows: list[int]
    since: float


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
        self.cancelled: dict[int, CallResult] = {}
        """Rows that were cancelled while they ran, with the result that they then have."""
        self.worker: asyncio.Task[Any] | None = None
        """The coroutine's task that handles the delivery."""
        self.task: asyncio.Task[Any] | None = None
        """The task in which its call runs now."""
        self.interrupted = False
        """Whether that was cancelled."""
        self.cancel_reached = False
        """Whether its loop has heard of a cancelled row."""
        self.cancel_by: float | None = None
        """When a loop that has not heard of it counts as blocked."""
        self._guard = threading.Lock()
        self._finished: FinishedCalls = []
        self._running: list[int] = []
        self._dropped: set[int] = set()
        """Rows that were cancelled before they began."""
        self._end = len(delivery)
        """The first of the rows that were given back."""
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
            if rows[0] not in waiting or not self._dropped.isdisjoint(rows):
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

    def call(self) -> CallInHand | None:
        """The call that runs, seen from another thread without a lock.

        No call is timed: those that have not begun `LINGER` after the delivery are given back, so the delivery's age is
        that of its running call.
        """
        if self.ended_rows is None:
            rows = [] if self.ended is not None else list(self._running)
        else:
            rows = list(range(self.ended_rows, self._first_waiting()))
            if self._dropped:
                rows = [row for row in rows if row not in self._dropped]
        return CallInHand(self.delivery, rows, self._began) if rows and not self._closed else None

    def cancel(self, offset: int, result: CallResult) -> bool:
        """From another thread: let the message at this offset end with this result. One that has not begun does so
        with its delivery; for one that runs, the caller sees to it that its call ends. False if it is not here, or its
        call has ended."""
        offsets = self.delivery.offsets
        if offset not in offsets:
            return False
        row = offsets.index(offset)
        with self._guard:
            if self._closed:
                return False
            try:
                self.waiting.remove(row)
            except (ValueError, IndexError):
                if not self.runs(row):
                    return False
                self.cancelled.setdefault(row, result)
            else:
                self._dropped.add(row)
                self._finished.append(([row], result))
            return True

    def runs(self, row: int) -> bool:
        """Whether the call of this row has begun and not ended."""
        call = self.call()
        return call is not None and row in call.rows

    def note_lost(self, result: CallResult) -> None:
        """The worker takes rows out one by one, and the last call broke off without a result."""
        if (call := self.call()) is not None:
            noted = {row for rows, _ in self._finished for row in rows}
            for row in call.rows:
                if row not in noted:
                    self.note(row, result)
            self.ended_rows = call.rows[-1] + 1

    def charged(self, rows: list[int], result: CallResult) -> FinishedCalls:
        """The result of a call for each of its rows."""
        return charged(self.cancelled, rows, result)

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
                self._note_taken(self.ended_rows, waiting[0] if waiting else self._end)
            finished = self._finished
            if self.cancelled:
                finished = [one for rows, result in finished for one in self.charged(rows, result)]
            return DeliveryState(finished, self._running, waiting)

    def give_back(self, now: float) -> list[int]:
        """The rows to give back because the delivery takes long."""
        if now < self._began + LINGER or not self.waiting:
            return []
        with self._guard:
            if self._closed:
                return []
            rows = self._take_waiting()
            if rows:
                self._end = rows[0]
            return rows

    def _first_waiting(self) -> int:
        try:
            return self.waiting[0]
        except IndexError:
            return self._end

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
