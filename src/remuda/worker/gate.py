"""Holds the intake while the worker cannot work: its health check fails, or it refuses whatever it is given (W8)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

_LOG: Final = logging.getLogger("remuda.worker")
_MANY: Final = 3
"""Refusals in a row, of any tasks, after which the worker is taken to refuse everything."""
_LONGEST: Final = 30.0
_INTERVAL: Final = 1.0
"""Seconds after which the health check is asked again."""
_SILENT: Final = 10.0
"""Seconds after which a health check that gives no answer counts as failing."""


class Gate:
    """Whether tasks are taken. `is_open` may ask the health check; the others never wait. One check runs at a time, and
    in a thread of its own, so that one that hangs holds the intake and nothing else."""

    def __init__(self, check: Callable[[], None], pause: float) -> None:
        self._check = check
        self._guard = threading.Lock()
        self._asking = threading.Lock()
        self._asked = self._asking_since = float("-inf")
        self._sick = ""
        self._refusals = 0
        self._first_pause = self._pause = max(pause, 0.01)
        self._held_until = 0.0
        self._last_refusal = ""

    def is_open(self) -> bool:
        if time.monotonic() >= self._asked + _INTERVAL and self._asking.acquire(blocking=False):
            self._asking_since = time.monotonic()
            asking = threading.Thread(target=self._ask, name="worker health check", daemon=True)
            asking.start()
            asking.join(_SILENT)
            if asking.is_alive():
                _LOG.warning("the intake is held: the health check has given no answer for %g s", _SILENT)
        return not self.problem

    def _ask(self) -> None:
        try:
            self._check()
            found = ""
        except BaseException as error:
            found = str(error) or type(error).__name__
        if found and not self._sick:
            _LOG.warning("the intake is held: the health check fails: %s", found)
        elif self._sick and not found:
            _LOG.info("the health check passes: tasks are taken again")
        self._sick, self._asked = found, time.monotonic()
        self._asking.release()

    @property
    def sick(self) -> str:
        """Why the health check failed when it was last asked."""
        silent = time.monotonic() - self._asking_since
        if self._asking.locked() and silent >= _SILENT:
            return f"it has given no answer for {silent:.0f} s"
        return self._sick

    @property
    def problem(self) -> str:
        """Why no tasks are taken at present, if none are."""
        if sick := self.sick:
            return f"held while the health check fails: {sick}"
        left = self._held_until - time.monotonic()
        if left > 0:
            return f"held for {left:.1f} s more: the last {self._refusals} tasks were refused: {self._last_refusal}"
        return ""

    def refused(self, why: str) -> None:
        """A task was not taken now."""
        with self._guard:
            self._refusals += 1
            self._last_refusal = why or "not now"
            if self._refusals < _MANY or time.monotonic() < self._held_until:
                return
            self._held_until = time.monotonic() + self._pause
            _LOG.warning(
                "the intake is held for %.1f s: the last %d tasks were refused: %s", self._pause, self._refusals,
                self._last_refusal,
            )  # fmt: skip
            self._pause = min(2 * self._pause, _LONGEST)

    def took(self) -> None:
        """A task was taken."""
        if self._refusals:
            with self._guard:
                self._refusals, self._held_until, self._pause = 0, 0.0, self._first_pause
