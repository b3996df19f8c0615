"""Stops a bus gracefully at the first signal, and the process at once at the second."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FrameType
from typing import Any, Protocol

from remuda.model.values.durations import Duration

_log = logging.getLogger("remuda.run")
_AGAIN = 0.05


class Stoppable(Protocol):
    def ask_to_stop(self) -> None: ...


def stopped_by_sigterm(bus: Stoppable, grace: Duration) -> AbstractContextManager[None]:
    """Within this context, SIGTERM stops the bus, unless the application handles that signal itself."""
    unhandled = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    return StopOnSignal(bus, grace, (signal.SIGTERM,)) if unhandled else nullcontext()


class StopOnSignal(AbstractContextManager[None]):
    """Within this context, signals stop the bus."""

    def __init__(
        self, bus: Stoppable, grace: Duration, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        self._bus = bus
        self._grace = grace
        self._signals = signals
        self._asked = False
        self._over = threading.Event()
        self._before: dict[signal.Signals, Any] = {}
        self._pipe: tuple[int, int] = (-1, -1)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        # The thread that stops the bus is started before the first signal. A signal handler that started it could
        # interrupt this thread while it starts another, and wait for ever for a lock that this thread holds.
        self._pipe = os.pipe()
        self._thread = threading.Thread(target=self._stop, name="remuda-stop", daemon=True)
        self._thread.start()
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        reading, writing = self._pipe
        with suppress(OSError):
            os.close(writing)
        if self._thread is not None:
            self._thread.join()
        with suppress(OSError):
            os.close(reading)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            # Nothing is lost: messages in progress are delivered again at the next start.
            os.write(2, b"forced to quit; messages in progress are delivered again at the next start\n")
            os._exit(128 + number)
        self._asked = True
        with suppress(OSError):
            os.write(self._pipe[1], b"!")

    def _stop(self) -> None:
        if not os.read(self._pipe[0], 1):
            return
        _log.info("stopping; running handlers have %s to finish. Press again to force quit", self._grace)
        while not self._over.is_set():
            # A request that comes before the bus runs has no effect, so repeat it until this context ends.
            self._bus.ask_to_stop()
            self._over.wait(_AGAIN)
