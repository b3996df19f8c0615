"""Python's garbage collector, at rest while many things are made that stay."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_guard = threading.Lock()
_resting = 0


@contextmanager
def resting_collector() -> Iterator[None]:
    """With ten thousand queues, looking again and again for garbage among them is most of the work of making them."""
    global _resting
    if not gc.isenabled() and not _resting:
        yield  # somebody else has turned it off, and wants it off
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
