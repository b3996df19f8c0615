"""Small writes that do not let go of the interpreter.

`os.pwrite` lets other threads run meanwhile. A small write only copies a few bytes into the page cache, and is over
before another thread has woken up: that thread then finds the interpreter taken again, and both have paid for nothing.
With several busy threads this doubles the price of a message. A thread that is alone pays less for `os.pwrite`.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Final

from remuda.gil import keeping_interpreter, raise_failed

_MOST_BYTES: Final = 32 * 1024
_CROWDED: Final = 0.00002
_CROWDED_FOR: Final = 1.0
_STALL: Final = 0.05
_DISTRUST: Final = 10.0
_now = time.monotonic


class QuickWriter:
    """Keeps the interpreter for a while once a small write took so long that another thread must have had it; and lets
    it go again once the disk makes a write wait, as when it is overloaded."""

    def __init__(self) -> None:
        self._pwrite = keeping_interpreter("pwrite", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
        self._crowded_until = 0.0
        self._distrusted_until = 0.0 if self._pwrite is not None else float("inf")

    def write(self, handle: int, data: bytes, position: int) -> int:
        """As `os.pwrite`."""
        began = _now()
        if began >= self._crowded_until or len(data) > _MOST_BYTES or began < self._distrusted_until:
            written = os.pwrite(handle, data, position)
            if _now() - began > _CROWDED and len(data) <= _MOST_BYTES:
                self._crowded_until = began + _CROWDED_FOR
            return written
        kept: int = self._pwrite(handle, data, len(data), position)
        ended = _now()
        if ended - began > _STALL:
            self._distrusted_until = ended + _DISTRUST
        if kept < 0:
            try:
                raise_failed()
            except InterruptedError:
                return os.pwrite(handle, data, position)
        return kept
