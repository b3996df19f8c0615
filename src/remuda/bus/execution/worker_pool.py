"""The interface of worker pools, and functions that they share."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from remuda.bus.execution.active_delivery import CallInHand
from remuda.bus.execution.processor import QueueProcessor
from remuda.bus.execution.settling import PULL
from remuda.bus.execution.watchdog import Watchdog
from remuda.bus.handlers.result import CallResult
from remuda.model.errors import BrokerClosed, BrokerStopped, RemudaError

_log = logging.getLogger("remuda.bus")

PAUSE: Final = 1.0
"""How long a worker waits, in seconds, after an error before it tries again."""
_TRIES: Final = 10
"""How often a worker tries a broker that has stopped: another process may host its directory by then."""


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

    def cancel(self, offset: int, result: CallResult) -> bool:
        """From another thread: have a message end with this result. One that runs is told to stop, then interrupted.
        False if it is not here, or its call has ended."""
        ...

    def calls(self) -> list[CallInHand]:
        """What runs now, as seen from another thread: a call that ends meanwhile may or may not be among it."""
        ...


class PoolThread(Protocol):
    """One thread of a pool."""

    thread: threading.Thread

    def give_up(self) -> None:
        """Interrupt what it does and give its messages back: the pool has stopped and waits no longer."""
        ...

    def cancel(self, offset: int, result: CallResult) -> bool: ...
    def calls(self) -> list[CallInHand]: ...


T = TypeVar("T", bound=PoolThread)


class ThreadPool(Generic[T]):
    """A worker pool on threads, of which one that is abandoned is replaced."""

    def __init__(self, processor: QueueProcessor, watchdog: Watchdog) -> None:
        self.processor = processor
        self.watchdog = watchdog
        self.stopping = threading.Event()
        self._guard = threading.Lock()
        self._threads: list[T] = []

    def make(self) -> T:
        raise NotImplementedError

    def start(self) -> None:
        thread = self.make()
        with self._guard:
            self._threads.append(thread)
        thread.thread.start()

    def replace(self, thread: T) -> None:
        with self._guard:
            self._threads.remove(thread)
        if not self.stopping.is_set():
            ThreadPool.start(self)

    def stop(self) -> None:
        self.stopping.set()
        self.processor.dispatcher.stop.set()
        self.processor.stop()

    def join(self, timeout: float) -> bool:
        return join_all([one.thread for one in self._listed()], timeout)

    def abandon(self) -> None:
        for one in self._listed():
            one.give_up()

    def cancel(self, offset: int, result: CallResult) -> bool:
        return any(one.cancel(offset, result) for one in self._listed())

    def calls(self) -> list[CallInHand]:
        return [call for one in self._listed() for call in one.calls()]

    def _listed(self) -> list[T]:
        with self._guard:
            return list(self._threads)


def join_all(threads: Iterable[threading.Thread], timeout: float) -> bool:
    """Wait for threads to end, except for this one and those that never started; False if some did not in time."""
    deadline = time.monotonic() + timeout
    others = [thread for thread in threads if thread.ident is not None and thread is not threading.current_thread()]
    for thread in others:
        thread.join(max(deadline - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in others)


def run_until_stopped(processor: QueueProcessor, stopping: threading.Event, step: Callable[[], bool]) -> None:
    """Repeat a step until it returns False or the pool stops. After an error, the next one waits for `PAUSE`."""
    tries = 0
    while not stopping.is_set():
        try:
            if not step():
                return
            tries = 0
        except BrokerClosed as error:
            processor.on_closed(error)
            return
        except Exception as error:
            report_trouble(processor, error)
            tries += isinstance(error, BrokerStopped)
            if tries >= _TRIES:
                processor.on_closed(error)
                return
            stopping.wait(PAUSE)


def report_trouble(processor: QueueProcessor, error: Exception) -> None:
    known, before = isinstance(error, RemudaError), processor.troubles.get(PULL)
    processor.troubles[PULL] = str(error)
    if before == str(error):
        return  # it is said once
    _log.error("%s: a worker failed and will try again: %s", processor.queue, error, exc_info=None if known else error)
