"""A clock that never jumps: the wall clock's time at the start, plus the time that has passed since."""

from __future__ import annotations

import time
from collections.abc import Callable

from remuda.native import stores

Clock = Callable[[], int]
"""Gives microseconds since the epoch."""

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts sleep of the machine too, where the system can."""


def steady_clock() -> Clock:
    """A clock for leases and deadlines: setting the machine's clock neither ends nor stretches them."""
    offset = time.time_ns() - time.clock_gettime_ns(_STEADY)
    if stores is not None:
        return stores.Clock(_STEADY, offset)

    def now(read: Callable[[int], int] = time.clock_gettime_ns, steady: int = _STEADY) -> int:
        return (read(steady) + offset) // 1000

    return now
