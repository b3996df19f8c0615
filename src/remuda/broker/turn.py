"""One thread at a time changes the queues, and a change that is cut short is never carried on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from remuda.model.errors import RemudaError


class Turn:
    """A lock that notices when its holder was interrupted.

    The core refuses with its own errors before it changes anything. Any other error, such as Ctrl-C in the middle of a
    move, may leave it half changed: then nothing more may be written from it, and the log tells what is true.
    """

    def __init__(self, lock: threading.Lock, give_up: Callable[[BaseException], None]) -> None:
        self._lock = lock
        self._give_up = give_up

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not isinstance(error, RemudaError):
                self._give_up(error)
        finally:
            self._lock.release()
