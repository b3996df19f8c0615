"""Watches running calls: interrupts those that exceed their timeout, and abandons those that ignore the interrupt."""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from remuda.bus.handlers.exceptions import HandlerCancelled, HandlerTimeout
from remuda.model.errors import BrokerClosed

_log = logging.getLogger("remuda.bus")

GRACE: Final = 1.0
"""How long an interrupted call may take to end, in seconds."""
_STEP: Final = 0.02
_QUIET: Final = 50
"""Steps without a call after which it sleeps until there is one."""
_UNINTERRUPTIBLE: Final = ("remuda.broker", "remuda.core", "remuda.log")
"""Packages whose code must not be interrupted: the queues or the log would be left half changed."""

_here = threading.local()
_spare: Final[list[Watchdog]] = []
"""For threads that no worker watches. Started when it is needed first."""
_spare_guard: Final = threading.Lock()


def check() -> None:
    """Called when a handler returns from the broker's code: raises `HandlerTimeout` if its time is up."""
    watched: WatchedThread | None = getattr(_here, "watched", None)
    if watched is not None:
        watched.check()


def too_long(seconds: float) -> str:
    return f"it took longer than {seconds:g} s"


@contextmanager
def limit(seconds: float, ignored: Callable[[], None] | None = None) -> Iterator[None]:
    """Interrupt what this thread does after so many seconds, by a `TimeoutError`. If it ignores that, `ignored` is
    called, by another thread, before somebody takes its place."""
    watched: WatchedThread | None = getattr(_here, "watched", None)
    if watched is None:  # a thread of no worker: nothing takes its place if it ignores the interrupt
        watched = _here.watched = WatchedThread("a step", lambda now: None, lambda: None)
    if watched.busy:
        with watched.limit(seconds, ignored):
            yield
        return
    with _spare_guard:
        if not _spare:
            _spare.append(Watchdog())
            _spare[0].start()
    _spare[0].add(watched)
    _spare[0].begin(watched)
    try:
        with watched.limit(seconds, ignored):
            yield
    finally:
        watched.busy -= 1
        watched.abandoned = False
        _spare[0].remove(watched)


class WatchedThread:
    """A thread whose calls may time out: it calls `begin` and `end`, and the watchdog checks the time in between.

    `attend` is called at each check, `abandon` once if the thread ignores the interrupt.
    """

    def __init__(self, label: str, attend: Callable[[float], None], abandon: Callable[[], None]) -> None:
        self.label = label
        self.abandoned = False
        self.interrupted = False
        self.busy = 0
        """How many deliveries it works on. The watchdog sleeps while nobody is busy."""
        self.attend = attend
        self._abandon = abandon
        self._guard = threading.Lock()
        self._wanted = False
        self._thread = 0
        self._deadline = 0.0
        self._ignored: Callable[[], None] | None = None
        self._calling = False
        self._cancelled: Callable[[], bool] | None = None
        """If the call was cancelled: whether it still runs."""

    def begin(self, timeout: float | None) -> None:
        _here.watched = self
        if timeout is None and not self._deadline:
            # No deadline, before or after: the watchdog does not read these fields, so no lock is needed.
            self.interrupted = self._wanted = False
            self._thread = threading.get_ident()
            self._calling = True
            return
        with self._guard:
            self.interrupted = self._wanted = False
            self._thread = threading.get_ident()
            self._deadline = time.monotonic() + timeout if timeout is not None else 0.0
            self._calling = True

    def end(self) -> None:
        """The call has ended. An interrupt that was sent but has not arrived is taken back. May be called twice."""
        with self._guard:
            self._deadline = 0.0
            self._calling, self._cancelled = False, None
            self._wanted = False
            if self.interrupted:
                _raise_in(self._thread, None)

    @contextmanager
    def limit(self, seconds: float, ignored: Callable[[], None] | None) -> Iterator[None]:
        """A part of the call, which has a time limit of its own: raises `TimeoutError`."""
        end = time.monotonic() + seconds
        with self._guard:
            outer = self._deadline
            self._deadline = min(outer or end, end)
            if self._deadline == end:
                self._ignored = ignored
            self._thread = threading.get_ident()
        try:
            yield
        except HandlerTimeout:
            if self._deadline != end or self._cancelled is not None or self.abandoned:
                raise
            raise TimeoutError(too_long(seconds)) from None
        finally:
            with self._guard:
                self._ignored = None
                if self._deadline == end:
                    self._deadline = outer
                    if self.interrupted or self._wanted:
                        self.interrupted = self._wanted = False
                        _raise_in(self._thread, None)

    def cancel(self, runs: Callable[[], bool], grace: float) -> None:
        """The call is to end: interrupt it after this many seconds, as one that exceeds its timeout. `runs` tells
        whether it still does, where one `begin` is for several calls."""
        with self._guard:
            if not self._calling or self._cancelled is not None or not runs():
                return
            self._cancelled = runs
            deadline = time.monotonic() + grace
            self._deadline = min(self._deadline or deadline, deadline)
            if not grace:
                self._interrupt()

    def look(self, now: float) -> None:
        with self._guard:
            if self._cancelled is not None and not self._cancelled():
                # It has ended: an interrupt that has not arrived is not for the next.
                self._cancelled, self._deadline, self._wanted = None, 0.0, False
                if self.interrupted:
                    _raise_in(self._thread, None)
                    self.interrupted = False
            if not self._deadline or now < self._deadline or self.abandoned:
                return
            if now < self._deadline + GRACE:
                self._interrupt()
                return
            self.abandoned = True
        what = "timeout" if self._cancelled is None else "cancellation"
        _log.error("%s ignores its %s; it is abandoned, and the others continue", self.label, what)
        try:
            if self._ignored is not None:
                self._ignored()
        finally:
            self._abandon()

    def give_up(self) -> None:
        """Interrupt the call, since its result is no longer wanted."""
        with self._guard:
            self.abandoned = True
            if self._thread and self._thread != threading.get_ident():
                self._interrupt()

    def _interrupt(self) -> None:
        # This thread holds the interpreter lock from the check to the raise, so the other thread cannot enter code of
        # the broker in between. It raises the error at its next bytecode, at the latest when it calls a function.
        if self.interrupted:
            return
        if _is_uninterruptible(self._thread):
            self._wanted = True
            return
        self.interrupted = True
        _raise_in(self._thread, HandlerTimeout if self._cancelled is None else HandlerCancelled)

    def check(self) -> None:
        """Called by the thread itself: raise the interrupt that was held back while it was in the broker's code."""
        if not self._wanted and not self.abandoned:
            return
        with self._guard:
            if self.interrupted and not self.abandoned:
                return
            self.interrupted = True
        raise HandlerTimeout if self._cancelled is None else HandlerCancelled


class Watchdog:
    """One thread that checks all watched threads of a runner."""

    def __init__(self) -> None:
        self._watched: set[WatchedThread] = set()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._asleep = False
        self._thread = threading.Thread(target=self._run, name="remuda-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, watched: WatchedThread) -> None:
        with self._guard:
            self._watched.add(watched)

    def remove(self, watched: WatchedThread) -> None:
        with self._guard:
            self._watched.discard(watched)

    def begin(self, watched: WatchedThread) -> None:
        """A thread takes up a delivery."""
        watched.busy += 1
        if self._asleep:
            self._wake.set()

    def _run(self) -> None:
        quiet = 0
        while not self._stop.wait(_STEP):
            with self._guard:
                threads = [one for one in self._watched if one.busy]
            quiet = 0 if threads else quiet + 1
            if quiet > _QUIET:
                self._sleep()
                quiet = 0
            now = time.monotonic()
            for watched in threads:
                try:
                    watched.look(now)
                    watched.attend(now)
                except BrokerClosed:
                    pass
                except Exception:
                    _log.exception("watching %s failed", watched.label)

    def _sleep(self) -> None:
        """Until a thread takes up a delivery."""
        self._wake.clear()
        self._asleep = True
        with self._guard:
            threads = list(self._watched)
        if not any(watched.busy for watched in threads) and not self._stop.is_set():
            self._wake.wait()
        self._asleep = False


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in another thread at its next bytecode; None takes back one that has not been raised yet."""
    target = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)


def _is_uninterruptible(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_UNINTERRUPTIBLE):
            return True
        frame = frame.f_back
    return False
