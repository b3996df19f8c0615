"""Stopping in order at the first signal, at once at the second."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

_log = logging.getLogger("remuda.run")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_AGAIN: Final = 0.05


class Stopper:
    """While this is entered, signals stop the bus."""

    def __init__(self, bus: Bus, grace: str) -> None:
        self._bus = bus
        self._grace = grace
        self._asked = False
        self._over = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._receive)

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            # Nothing is lost: what was being handled is given out again at the next start.
            os.write(2, b"stopped at once; messages in hand are given out again at the next start\n")
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
