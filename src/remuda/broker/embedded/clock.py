"""A clock that never jumps: the wall clock's time at the start, plus the time that has passed since."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Gives microseconds since the epoch."""

_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts sleep of the machine too, where the system can."""


def steady_clock() -> Clock:
    """A clock for leases and deadlines: setting the machine's clock neither ends nor stretches them."""
    steady, read = _STEADY, time.clock_gettime_ns
    offset = time.time_ns() - read(steady)

    def now() -> int:
        return (read(steady) + offset) // 1000

    return now
