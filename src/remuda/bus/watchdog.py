"""Watches running calls: interrupts those past their time, gives up on those that ignore it, renews leases meanwhile."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from remuda.bus.answers import HandlerTimeout

_log = logging.getLogger("remuda.bus")

GRACE: Final = 1.0
"""How long an interrupted call may take to end, in seconds."""
_STEP: Final = 0.02
_RENEW: Final = 10.0


class Slot:
    """One call at a time in one thread."""

    def __init__(self, label: str, renew: Callable[[], object], abandon: Callable[[], None]) -> None:
        self.label = label
        self.abandoned = False
        self.interrupted = False
        self.renew = renew
        self._abandon = abandon
        self._guard = threading.Lock()
        self._thread = 0
        self._deadline = 0.0

    def begin(self, timeout: float | None) -> None:
        with self._guard:
            self.interrupted = False
            self._thread = threading.get_ident()
            self._deadline = time.monotonic() + timeout if timeout is not None else 0.0

    def end(self) -> None:
        """The call is over. An interrupt that was sent but has not arrived is taken back."""
        with self._guard:
            self._deadline = 0.0
            if self.interrupted:
                _raise_in(self._thread, None)

    def look(self, now: float) -> None:
        with self._guard:
            if not self._deadline or now < self._deadline or self.abandoned:
                return
            if not self.interrupted:
                self.interrupted = True
                _raise_in(self._thread, HandlerTimeout)
                return
            if now < self._deadline + GRACE:
                return
            self.abandoned = True
        _log.error("%s ignores its timeout; its thread is left behind and others go on", self.label)
        self._abandon()


class Watchdog:
    """One thread for all slots of a runner."""

    def __init__(self) -> None:
        self._slots: set[Slot] = set()
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="remuda-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, slot: Slot) -> None:
        with self._guard:
            self._slots.add(slot)

    def remove(self, slot: Slot) -> None:
        with self._guard:
            self._slots.discard(slot)

    def _run(self) -> None:
        next_renewal = time.monotonic() + _RENEW
        while not self._stop.wait(_STEP):
            now = time.monotonic()
            with self._guard:
                slots = list(self._slots)
            renews = now >= next_renewal
            for slot in slots:
                try:
                    slot.look(now)
                    if renews:
                        slot.renew()
                except Exception:
                    _log.exception("watching %s failed", slot.label)
            if renews:
                next_renewal = now + _RENEW


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise in another thread at its next step, or take back what was to be raised."""
    target = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
