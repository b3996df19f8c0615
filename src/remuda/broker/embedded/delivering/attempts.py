"""Which messages of a delivery their consumer has begun (B4): if the process dies, only those count as attempted.

The marks are in a file that is mapped into memory, so that each costs one store and survives the process. They may not
survive a power loss, so the file names the boot of the machine that wrote it, and is ignored after another boot.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "begun.map"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_HEAD: Final = 64
_SLOTS: Final = 1024
_RANGES: Final = 3
_NUMBERS: Final = 2 + 2 * _RANGES
_BYTES: Final = _HEAD + 8 * _NUMBERS * _SLOTS

Run = tuple[int, int]


class FormerGuests(NamedTuple):
    """Guests of the last host that hold deliveries: the names of those alive, and the marks of those that died."""

    alive: frozenset[str]
    marks: tuple[AttemptMarks, ...]


FindFormerGuests = Callable[[], FormerGuests]
"""Finds the survivors, once the directory is locked."""


def first_known(all_marks: Sequence[AttemptMarks]) -> Callable[[int, int, int], list[Run] | None]:
    """Looks up which runs were begun: the first of these marks that knows the delivery decides."""

    def runs(event: int, first: int, count: int) -> list[Run] | None:
        return next((known for marks in all_marks if (known := marks.runs(event, first, count)) is not None), None)

    return runs


class Delivered(NamedTuple):
    """A delivery of an earlier process: the events that made it, and the ranges of offsets that were begun."""

    first_event: int
    events: int
    ranges: list[Run]


class AttemptMarks:
    """Slots for the newest deliveries; each takes over the slot of an older one, which is then unknown."""

    @classmethod
    def left_in(cls, path: str) -> AttemptMarks:
        """The marks of a process that is gone, read only."""
        marks = cls(None)
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                marks._delivered = _read(os.pread(handle, _BYTES, 0), _boot())
            finally:
                os.close(handle)
        return marks

    def __init__(self, path: str | None) -> None:
        self._delivered: list[Delivered] = []
        self._map: mmap.mmap | None = None
        self._turns = itertools.count()
        boot = _boot()
        if path is None or not boot:
            return
        with contextlib.suppress(OSError, ValueError):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                self._delivered = _read(os.pread(handle, _BYTES, 0), boot)
                os.ftruncate(handle, 0)
                os.posix_fallocate(handle, 0, _BYTES)
                self._map = mmap.mmap(handle, _BYTES)
                self._map[: len(boot)] = boot
            finally:
                os.close(handle)

    def runs(self, event: int, first: int, count: int) -> list[Run] | None:
        """Which of these messages, fetched by this event before the restart, were begun; None if that is unknown."""
        for delivered in self._delivered:
            if delivered.first_event <= event < delivered.first_event + delivered.events:
                clipped = [(max(start, first), min(stop, first + count)) for start, stop in delivered.ranges]
                return sorted((start, stop - start) for start, stop in clipped if start < stop)
        return None

    def track(self, lease: int, events: int) -> Marks:
        """Make room for the marks of a delivery whose first event is `lease`."""
        if self._map is None:
            return Marks(None)
        turn = next(self._turns) % _SLOTS
        start = _HEAD + 8 * _NUMBERS * turn
        # The view keeps the map open for as long as a consumer writes through it.
        numbers = memoryview(self._map)[start : start + 8 * _NUMBERS].cast("q")
        for at in range(_NUMBERS):
            numbers[at] = 0
        numbers[1] = events
        numbers[0] = lease + 1
        return Marks(numbers)


class Marks:
    """One delivery's slot in the map. Consumers go through their messages in order, so a few ranges suffice."""

    __slots__ = ("_at", "_end", "_numbers")

    def __init__(self, numbers: memoryview | None) -> None:
        self._numbers = numbers
        self._at = 1
        self._end = -1

    def begin(self, offset: int) -> None:
        numbers = self._numbers
        if numbers is None:
            return
        if offset == self._end:
            self._end = numbers[self._at] = offset + 1
        elif self._at + 2 < _NUMBERS:
            self._at += 2
            numbers[self._at - 1] = offset
            self._end = numbers[self._at] = offset + 1
        else:
            # The offsets need more ranges than fit: the delivery becomes unknown, and all of it counts as attempted.
            numbers[0] = 0
            self._numbers = None


def _boot() -> bytes:
    try:
        return _BOOT.read_bytes().strip()[:_HEAD]
    except OSError:
        return b""


def _read(data: bytes, boot: bytes) -> list[Delivered]:
    if len(data) != _BYTES or data[:_HEAD].rstrip(b"\0") != boot:
        return []
    numbers = memoryview(data)[_HEAD:].cast("q")
    found = []
    for at in range(0, len(numbers), _NUMBERS):
        lease, events, *ranges = numbers[at : at + _NUMBERS].tolist()
        if lease > 0:
            found.append(Delivered(lease - 1, events, list(zip(ranges[::2], ranges[1::2], strict=True))))
    return found
