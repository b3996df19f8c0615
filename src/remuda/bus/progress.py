"""How far a process has come with a delivery, as its parent reads it from the slate."""

from __future__ import annotations

import pickle
import time
from typing import Final

from remuda.bus import slate
from remuda.bus.hand import Ended, Rest
from remuda.bus.outcome import DONE, Outcome
from remuda.bus.slate import Slate
from remuda.core.effects import Answer
from remuda.model.durations import SECOND, text

_NANO: Final = 1_000_000_000


class Progress:
    """Remembers which rows of the delivery nobody has answered for yet."""

    def __init__(self, slate: Slate, count: int) -> None:
        self._slate = slate
        self._count = count
        self._left = set(range(count))
        self._told: Ended = []

    @property
    def began(self) -> int:
        """When the last call began; 0 if none has."""
        return self._slate.began

    @property
    def untouched(self) -> bool:
        return not self.began

    def hear(self, text: bytes) -> None:
        """The outcome of a call, for which the slate had no room."""
        self._told.append(pickle.loads(text))

    def is_running(self) -> bool:
        return slate.RUNNING in self._slate.marks(self._count)

    def take(self) -> Rest:
        """How things stand. Whatever has ended or has not begun is told once, for somebody to answer for it."""
        marks = self._slate.marks(self._count)
        told = (*map(pickle.loads, self._slate.texts()), *self._told)
        ended = [(rows, outcome) for rows, outcome in told if self._left.issuperset(rows)]
        self._left.difference_update(*(rows for rows, _ in ended))
        if done := [row for row in self._left if marks[row] == slate.DONE]:
            ended.append((done, DONE))
        waiting = [row for row in self._left if marks[row] == slate.WAITING]
        self._left.difference_update(done, waiting)
        return Rest(ended, sorted(self._left), waiting)


class Limit:
    """The time that each call may take."""

    def __init__(self, timeout: int | None) -> None:
        self._timeout = timeout or 0
        self._seconds = float("inf") if timeout is None else timeout / SECOND
        self.look = time.monotonic() + self._seconds
        """When to see again whether a call takes too long."""
        self.broken: int | None = None
        """The start of the call that did."""

    def is_broken(self, progress: Progress, now: float) -> bool:
        """Whether the call that runs takes too long; it is said once."""
        # In this order: if a call runs, and the last to begin has not begun since, then it is that one.
        running, began = progress.is_running(), progress.began
        self.look = (began / _NANO if running else now) + self._seconds
        if now < self.look:
            return False
        self.broken, self.look = began, float("inf")
        return True

    def verdict(self, progress: Progress) -> Outcome | None:
        """The outcome of the call that ran when the process was killed for one that took too long; None if it was not.

        They may differ: between the look and the kill a call can end and the next begin.
        """
        if self.broken is None:
            return None
        if self.broken == progress.began:
            return Outcome(Answer.NEGATIVE, f"timed out after {text(self._timeout)}; its process was killed")
        return Outcome(Answer.RELEASE, "its process was killed for the call before it")
