"""Waking a thread that waits in `poll`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Final

from remuda.gil import keeping_interpreter

_write: Final = keeping_interpreter("write", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)


class Wakeup:
    """A self-pipe. It is written to only while the thread sleeps, so most wakes cost no system call. The write keeps
    the interpreter lock: otherwise the woken thread would take it from the writer, which still has work to do."""

    def __init__(self) -> None:
        self.awake = True
        """Whether the thread will check for work before it sleeps again."""
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)
        self._closing = threading.Lock()

    def wake(self) -> None:
        if not self.awake:
            self.awake = True
            if _write is not None:
                _write(self._writer, b"!", 1)
            else:
                with contextlib.suppress(OSError):
                    os.write(self._writer, b"!")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)

    def close(self) -> None:
        """Close the pipe, once: two threads may call this, and a descriptor closed twice may be another file's by
        then."""
        with self._closing:
            ends, self.reader, self._writer = (self.reader, self._writer), -1, -1
        for end in ends:
            if end >= 0:
                os.close(end)
