"""Counts the messages that were handled, and knows when the last one was."""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final, Protocol

_STAMP: Final = struct.Struct("d")
_LOOK: Final = 0.0005


class Stuck(Exception):
    """Messages that were published were not handled in time."""


class Tally(Protocol):
    def expect(self, count: int) -> None:
        """Begin anew: so many messages will be handled."""

    def hit(self) -> None:
        """A handler was called."""

    def wait(self, limit: float) -> float:
        """The time of the last call, as `time.perf_counter` has it; raises `Stuck` after `limit` seconds."""


class ThreadTally:
    """For handlers in threads and coroutines of this process."""

    def __init__(self) -> None:
        self._expected = 0
        self._hits = itertools.count(1)
        self._last = 0.0
        self._done = threading.Event()

    def expect(self, count: int) -> None:
        self._done.clear()
        self._expected, self._hits = count, itertools.count(1)

    def hit(self) -> None:
        if next(self._hits) == self._expected:
            self._last = time.perf_counter()
            self._done.set()

    def wait(self, limit: float) -> float:
        if not self._done.wait(limit):
            raise Stuck(f"{next(self._hits) - 1} of {self._expected} messages were handled within {limit:g} s")
        return self._last


class FileTally:
    """For handlers in any process: each call adds the time to a file. All processes of a machine share that clock."""

    def __init__(self, path: Path) -> None:
        self._expected = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def expect(self, count: int) -> None:
        os.ftruncate(self._file, 0)
        self._expected = count

    def hit(self) -> None:
        os.write(self._file, _STAMP.pack(time.perf_counter()))

    def wait(self, limit: float) -> float:
        deadline = time.perf_counter() + limit
        while (size := os.fstat(self._file).st_size) < self._expected * _STAMP.size:
            if time.perf_counter() > deadline:
                raise Stuck(f"{size // _STAMP.size} of {self._expected} messages were handled within {limit:g} s")
            time.sleep(_LOOK)
        stamps: list[float] = [stamp for (stamp,) in _STAMP.iter_unpack(os.pread(self._file, size, 0))]
        return max(stamps)
