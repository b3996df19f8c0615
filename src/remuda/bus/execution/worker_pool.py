"""The interface of worker pools, and functions that they share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from remuda.bus.execution.processor import QueueProcessor
from remuda.model.errors import BrokerClosed, RemudaError

_log = logging.getLogger("remuda.bus")

POLL: Final = 0.2
"""How long a worker waits for messages, in seconds, before it checks whether to stop."""
PAUSE: Final = 1.0
"""How long a worker waits, in seconds, after an error before it tries again."""


class WorkerPool(Protocol):
    """The workers of one queue."""

    def start(self) -> None: ...
    def stop(self) -> None:
        """Pull nothing more, and give back what has not begun."""
        ...

    def join(self, timeout: float) -> bool:
        """Wait for what has begun; False if it did not end in time."""
        ...

    def abandon(self) -> None:
        """Interrupt what still runs, and give its messages back."""
        ...


def join_all(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Wait for threads to end, except for this one and those that never started; False if some did not in time."""
    deadline = time.monotonic() + timeout
    others = [thread for thread in threads if thread.ident is not None and thread is not threading.current_thread()]
    for thread in others:
        thread.join(max(deadline - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in others)


def run_until_stopped(processor: QueueProcessor, stopping: threading.Event, step: Callable[[], bool]) -> None:
    """Repeat a step until it returns False or the pool stops. After an error, the next one waits for `PAUSE`."""
    while not stopping.is_set():
        try:
            if not step():
                return
        except BrokerClosed:
            return
        except Exception as error:
            report_trouble(processor, error)
            stopping.wait(PAUSE)


def report_trouble(processor: QueueProcessor, error: Exception) -> None:
    processor.trouble = str(error)
    known = isinstance(error, RemudaError)
    _log.error("%s: a worker failed and will try again: %s", processor.queue, error, exc_info=None if known else error)
