"""Memory shared by a process and its parent: how far the calls have come, readable even after a crash.

The parent wipes it before it hands over messages, the process writes while it works. Nobody is woken by that, so a call
costs a few stores into memory. Each message has a mark; an outcome that is more than `DONE` is kept beside the marks.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Final

WAITING: Final = 0
RUNNING: Final = 1
DONE: Final = 2
TOLD: Final = 3
"""It finished with an outcome of its own, which is beside the marks or came over the connection."""

_HEAD: Final = 16
_BEGAN: Final = 0
_USED: Final = 1
_LENGTH: Final = struct.Struct("=I")
_ROOM: Final = 1 << 16


class SharedProgress:
    """One side's view of the memory. `size` is how many messages have marks."""

    def __init__(self, memory: Any, size: int) -> None:
        page = memoryview(memory).cast("B")
        self._numbers = page[:_HEAD].cast("q")
        self._marks = page[_HEAD : _HEAD + size]
        self._room = page[_HEAD + size :]

    @staticmethod
    def memory(context: BaseContext, size: int) -> Any:
        """Memory that can be handed to a new process."""
        return context.RawArray("B", _HEAD + size + _ROOM)

    # The parent

    def wipe(self, count: int) -> None:
        """Prepare for this many messages."""
        self._marks[:count] = bytes(count)
        self._numbers[_BEGAN] = self._numbers[_USED] = 0

    @property
    def began(self) -> int:
        """When the last call began, by `time.monotonic_ns`, a clock that all processes of a machine share."""
        return self._numbers[_BEGAN]

    def mark_of(self, row: int) -> int:
        return self._marks[row]

    def marks(self, count: int) -> bytes:
        return bytes(self._marks[:count])

    def texts(self) -> Iterator[bytes]:
        """Everything written so far."""
        start, used = 0, self._numbers[_USED]
        while start < used:
            (length,) = _LENGTH.unpack_from(self._room, start)
            start += _LENGTH.size
            yield bytes(self._room[start : start + length])
            start += length

    # The process

    def begin(self, rows: Sequence[int]) -> None:
        self._numbers[_BEGAN] = time.monotonic_ns()
        self.mark(rows, RUNNING)

    def mark(self, rows: Sequence[int], mark: int) -> None:
        for row in rows:
            self._marks[row] = mark

    def write(self, text: bytes) -> bool:
        """Keep some bytes; False if there is no room."""
        start = self._numbers[_USED]
        end = start + _LENGTH.size + len(text)
        if end > len(self._room):
            return False
        _LENGTH.pack_into(self._room, start, len(text))
        self._room[start + _LENGTH.size : end] = text
        self._numbers[_USED] = end
        return True
