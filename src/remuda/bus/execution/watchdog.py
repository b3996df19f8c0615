"""Watches running calls: interrupts those past their time, and gives up on those that ignore it."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from remuda.bus.handlers.exceptions import HandlerTimeout
from remuda.model.errors import BrokerClosed

_log = logging.getLogger("remuda.bus")

GRACE: Final = 1.0
"""How long an interrupted call may take to end, in seconds."""
_STEP: Final = 0.02
_SACRED: Final = ("remuda.broker", "remuda.core", "remuda.log")
"""Code that must never be interrupted: it would leave the queues, or the log, half changed."""


_here = threading.local()


def check() -> None:
    """Called where a handler comes back from the broker: raises `HandlerTimeout` if its time is up."""
    watched: WatchedThread | None = getattr(_here, "watched", None)
    if watched is not None:
        watched.check()


class WatchedThread:
    """One thread that must get on: it says `begin` and `end`, the watchdog looks whether the time in between is up."""

    def __init__(self, label: str, attend: Callable[[float], None], abandon: Callable[[], None]) -> None:
        self.label = label
        self.abandoned = False
        self.interrupted = False
        self.attend = attend
        self._abandon = abandon
        self._guard = threading.Lock()
        self._wanted = False
        self._thread = 0
        self._deadline = 0.0

    def begin(self, timeout: float | None) -> None:
        _here.watched = self
        if timeout is None and not self._deadline:
            # Nobody looks at the time, so there is nothing to agree on.
            self.interrupted = self._wanted = False
            self._thread = threading.get_ident()
            return
        with self._guard:
            self.interrupted = self._wanted = False
            self._thread = threading.get_ident()
            self._deadline = time.monotonic() + timeout if timeout is not None else 0.0

    def end(self) -> None:
        """The time stops. An interrupt that was sent but has not arrived is taken back. May be said twice."""
        with self._guard:
            self._deadline = 0.0
            self._wanted = False
            if self.interrupted:
                _raise_in(self._thread, None)

    def look(self, now: float) -> None:
        with self._guard:
            if not self._deadline or now < self._deadline or self.abandoned:
                return
            if now < self._deadline + GRACE:
                self._interrupt()
                return
            self.abandoned = True
        _log.error("%s ignores its timeout; it is abandoned, and the others continue", self.label)
        self._abandon()

    def give_up(self) -> None:
        """Nobody waits for the call any more: end it if it can be finished."""
        with self._guard:
            self.abandoned = True
            if self._thread and self._thread != threading.get_ident():
                self._interrupt()

    def _interrupt(self) -> None:
        # While this thread looks and raises, it holds the interpreter: the other cannot go on in between. The error
        # comes at its next step, which at the latest is the first of the next function that it calls.
        if self.interrupted:
            return
        if _in_sacred_code(self._thread):
            self._wanted = True
            return
        self.interrupted = True
        _raise_in(self._thread, HandlerTimeout)

    def check(self) -> None:
        """In the thread itself: raise what could not be raised while it was in the broker's code."""
        if not self._wanted and not self.abandoned:
            return
        with self._guard:
            if self.interrupted and not self.abandoned:
                return
            self.interrupted = True
        raise HandlerTimeout


class Watchdog:
    """One thread for all watched of a runner."""

    def __init__(self) -> None:
        self._watched: set[WatchedThread] = set()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remuda-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, watched: WatchedThread) -> None:
        with self._guard:
            self._watched.add(watched)

    def remove(self, watched: WatchedThread) -> None:
        with self._guard:
            self._watched.discard(watched)

    def _run(self) -> None:
        while not self._stop.wait(_STEP):
            with self._guard:
                threads = list(self._watched)
            now = time.monotonic()
            for watched in threads:
                try:
                    watched.look(now)
                    watched.attend(now)
                except BrokerClosed:
                    pass
                except Exception:
                    _log.exception("watching %s failed", watched.label)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise in another thread at its next step, or take back what was to be raised."""
    target = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)


def _in_sacred_code(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_SACRED):
            return True
        frame = frame.f_back
    return False
