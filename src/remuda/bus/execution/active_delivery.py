"""A delivery while it is worked through."""

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
"""Rows of a delivery, and how the call for them ended."""

LINGER: Final = 0.25
"""Seconds after which what has not begun goes back, so that another worker can take it."""
RENEW: Final = 10.0
"""How often, in seconds, the lease of a delivery in work is renewed; more often where it is short."""
_PER_LEASE: Final = 3
"""How often a short lease is renewed in the time that it lasts."""


def renewal_interval(lease: int) -> float:
    """The seconds after which a lease of `lease` microseconds is renewed."""
    return min(RENEW, max(lease, 0) / SECOND / _PER_LEASE)


class DeliveryState(msgspec.Struct, frozen=True):
    """A delivery as it was left: calls that finished, one that runs, rows that have not begun."""

    finished: FinishedCalls
    running: list[int]
    waiting: list[int]


class ActiveDelivery(Generic[D]):
    """Where a worker and whoever watches it agree on which rows have begun, and on which of them answers.

    A worker says of each call that it begins and how it ended, or it takes the rows out of `waiting` one by one: that
    needs no lock, since whoever takes a row out has it alone.
    """

    def __init__(self, delivery: D) -> None:
        self.delivery = delivery
        self.ended: CallResult | None = None
        """How the call that was begun has ended. Only the worker says so, and whoever asks next takes it from here."""
        self.waiting = deque(range(len(delivery)))
        """Rows that have not begun, in their order."""
        self.in_turn: int | None = None
        """For a worker that takes them out one by one: of how many, from the first one on, the calls have ended."""
        self._guard = threading.Lock()
        self._finished: FinishedCalls = []
        self._running: list[int] = []
        self._given_back = 0
        self._closed = False
        self._began = time.monotonic()
        self._renew_at: float | None = None

    def begin(self, rows: list[int]) -> bool:
        """A call begins; False if its rows have been given back, or somebody else has answered for the delivery."""
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
        """A row taken out of `waiting` did not simply end well."""
        self._finished.append(([row], result))

    def close(self) -> DeliveryState | None:
        """What to answer for the delivery; None if somebody else does."""
        with self._guard:
            if self._closed:
                return None
            if self.ended is not None:
                self._note_ended(self.ended)
            self._closed = True
            waiting = self._take_waiting()
            if self.in_turn is not None:
                self._note_taken(self.in_turn, len(self.delivery) - self._given_back - len(waiting))
            return DeliveryState(self._finished, self._running, waiting)

    def give_back(self, now: float) -> list[int]:
        """Rows to give back because the delivery takes long."""
        if now < self._began + LINGER or not self.waiting:
            return []
        with self._guard:
            if self._closed:
                return []
            rows = self._take_waiting()
            self._given_back += len(rows)
            return rows

    def _take_waiting(self) -> list[int]:
        """The worker may take rows out meanwhile, from the other end."""
        waiting, rows = self.waiting, list[int]()
        while waiting:
            try:
                rows.append(waiting.pop())
            except IndexError:
                break
        rows.reverse()
        return rows

    def _note_taken(self, ended: int, begun: int) -> None:
        """What has become of the rows that were taken out. A call may just have ended badly, and be told of already."""
        told = {row for rows, _ in self._finished for row in rows}
        well = [row for row in range(ended) if row not in told] if told else list(range(ended))
        if well:
            self._finished.append((well, DONE))
        self._running = [row for row in range(ended, begun) if row not in told]

    def _note_ended(self, result: CallResult) -> None:
        self._finished.append((self._running, result))
        self._running, self.ended = [], None

    def must_renew(self, now: float, clock: Clock) -> bool:
        """Whether the lease needs renewing. Whoever is told so renews it, and says `renewed`."""
        if self._renew_at is None:
            self._renew_at = now + renewal_interval(self.delivery.deadline - clock())
        if now < self._renew_at:
            return False
        self._renew_at = now + RENEW
        return True

    def renewed(self, now: float, lease: int) -> None:
        """The lease was renewed, for `lease` microseconds."""
        self._renew_at = now + renewal_interval(lease)
