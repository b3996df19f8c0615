"""Pausing Python's garbage collector while many long-lived objects are created."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_guard = threading.Lock()
_resting = 0


@contextmanager
def resting_collector() -> Iterator[None]:
    """Pause garbage collection. With ten thousand queues, it is most of the cost of creating them."""
    global _resting
    if not gc.isenabled() and not _resting:
        yield  # the application has turned it off
        return
    with _guard:
        _resting += 1
        gc.disable()
    try:
        yield
    finally:
        with _guard:
            _resting -= 1
            if not _resting:
                gc.enable()
