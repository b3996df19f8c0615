"""How far a process has come with a delivery, as its parent reads it from the memory they share."""

from __future__ import annotations

import pickle
import time
from typing import Final

from remuda.bus.broker_api import Outcome
from remuda.bus.execution.active_delivery import DeliveryState, FinishedCalls
from remuda.bus.execution.cancelling import charged
from remuda.bus.execution.processes import shared_progress as shared
from remuda.bus.execution.processes.shared_progress import SharedProgress
from remuda.bus.execution.watchdog import GRACE
from remuda.bus.handlers.result import DONE, CallResult
from remuda.model.values.durations import SECOND, text

_NANO: Final = 1_000_000_000


class BatchTracker:
    """Knows which rows of the delivery are still to be settled."""

    def __init__(self, shared: SharedProgress, count: int) -> None:
        self._shared = shared
        self._count = count
        self._left = set(range(count))
        self._result_of: FinishedCalls = []
        self.cancelled: dict[int, CallResult] = {}
        """Rows that were cancelled, with the result that they have then."""
        self.cancel_by = float("inf")
        """When the process is killed, if a cancelled row still runs."""
        self.killed = False
        """Whether it was."""

    @property
    def began(self) -> int:
        """When the last call began; 0 if none has."""
        return self._shared.began

    @property
    def untouched(self) -> bool:
        return not self.began

    def hear(self, text: bytes) -> None:
        """The result of a call, for which the shared memory had no room."""
        self._result_of.append(pickle.loads(text))

    def is_running(self) -> bool:
        return shared.RUNNING in self._shared.marks(self._count)

    def running(self) -> list[int]:
        """The rows of the call that runs."""
        return [row for row, mark in enumerate(self._shared.marks(self._count)) if mark == shared.RUNNING]

    def take(self) -> DeliveryState:
        """The state of the delivery. Rows that have finished or not begun are listed once, for the caller to settle."""
        marks = self._shared.marks(self._count)
        told = (*map(pickle.loads, self._shared.texts()), *self._result_of)
        finished = [(rows, result) for rows, result in told if self._left.issuperset(rows)]
        self._left.difference_update(*(rows for rows, _ in finished))
        if done := [row for row in self._left if marks[row] == shared.DONE]:
            finished.append((done, DONE))
        waiting = [row for row in self._left if marks[row] == shared.WAITING]
        self._left.difference_update(done, waiting)
        if self.cancelled:
            finished = [one for rows, result in finished for one in charged(self.cancelled, rows, result)]
        return DeliveryState(finished, sorted(self._left), waiting)

    def cancel(self, row: int, result: CallResult) -> None:
        """From another thread: the row is to end with this result, at the latest when it had time to."""
        self.cancelled[row] = result
        self.cancel_by = min(self.cancel_by, time.monotonic() + GRACE)

    def must_kill(self, now: float) -> bool:
        """Whether a cancelled row did not end in time."""
        if now < self.cancel_by:
            return False
        self.cancel_by = float("inf")
        self.killed = not self.cancelled.keys().isdisjoint(self.running())
        return self.killed

    def has_ended(self, row: int) -> bool:
        return row not in self._left or self._shared.mark_of(row) in (shared.DONE, shared.TOLD)


class CallDeadline:
    """The time that each call may take."""

    def __init__(self, timeout: int | None) -> None:
        self._timeout = timeout or 0
        self._seconds = float("inf") if timeout is None else timeout / SECOND
        self.look = time.monotonic() + self._seconds
        """When to check again whether a call takes too long."""
        self.broken: int | None = None
        """The start of the call that did."""

    def is_broken(self, tracker: BatchTracker, now: float) -> bool:
        """Whether the running call takes too long; true only once."""
        # In this order: if a call runs, and the last to begin has not begun since, then it is that one.
        running, began = tracker.is_running(), tracker.began
        self.look = (began / _NANO if running else now) + self._seconds
        if now < self.look:
            return False
        self.broken, self.look = began, float("inf")
        return True

    def result_of_kill(self, tracker: BatchTracker) -> CallResult | None:
        """The result of the call that ran when the process was killed for one that took too long; None if it was not.

        They may differ: between the look and the kill a call can end and the next begin.
        """
        if self.broken is None:
            return None
        if self.broken == tracker.began:
            return CallResult(Outcome.NACK, f"timed out after {text(self._timeout)}; its process was killed")
        return CallResult(Outcome.RELEASE, "its process was killed for the call before it")
