"""Stopping in order at the first signal, at once at the second."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

from remuda.model.durations import Duration

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.run")
_AGAIN = 0.05


def stopped_by_sigterm(bus: Bus, grace: Duration) -> AbstractContextManager[None]:
    """Inside, SIGTERM stops the bus, unless the application has its own way with signals."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return StopOnSignal(bus, grace, (signal.SIGTERM,)) if ours else nullcontext()


class StopOnSignal(AbstractContextManager[None]):
    """While this is entered, signals stop the bus."""

    def __init__(
        self, bus: Bus, grace: Duration, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        self._bus = bus
        self._grace = grace
        self._signals = signals
        self._asked = False
        self._over = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            # Nothing is lost: what was being handled is given out again at the next start.
            os.write(2, b"stopped at once; messages in active are given out again at the next start\n")
            os._exit(128 + number)
        self._asked = True
        # The signal may have come while this thread held a lock that stopping needs; so another thread does it.
        threading.Thread(target=self._stop, name="remuda-stop", daemon=True).start()

    def _stop(self) -> None:
        _log.info("stopping; running handlers have %s to end. Once more stops at once", self._grace)
        while not self._over.is_set():
            # Until the bus has begun to run there is nothing to stop, so ask until it is over.
            self._bus.stop()
            self._over.wait(_AGAIN)
