"""Snowflake ids (M4): 41 bits of milliseconds, 12 of sequence, 10 of worker.

The worker's number is in the lowest bits, so that a batch of ids is a `range` with a fixed step: a thousand ids
cost as much as one, and a full millisecond borrows from the next.
"""

from __future__ import annotations

from typing import Final

from remuda.model.errors import InvalidOption

EPOCH_MS: Final = 1_735_689_600_000  # 2025-01-01
WORKER_BITS: Final = 10
SEQUENCE_BITS: Final = 12
STEP: Final = 1 << WORKER_BITS
WORKERS: Final = 1 << WORKER_BITS
_TICK_BITS: Final = SEQUENCE_BITS + WORKER_BITS


class Snowflakes:
    """Hands out ids that never repeat and never go back, even when the clock does."""

    def __init__(self, worker: int) -> None:
        if not 0 <= worker < WORKERS:
            raise InvalidOption(f"worker {worker} is out of range; it must be 0 to {WORKERS - 1}")
        self.worker = worker
        self._next = 0

    def take(self, count: int, now: int) -> range:
        """`count` fresh ids at `now` (microseconds)."""
        tick = max(now // 1000 - EPOCH_MS, 0) << SEQUENCE_BITS
        first = max(self._next, self._from_tick(tick))
        self._next = first + count * STEP
        return range(first, self._next, STEP)

    def take_one(self, now: int) -> int:
        """As `take`, for one."""
        first = ((now // 1000 - EPOCH_MS) << _TICK_BITS) | self.worker
        if first < self._next:
            first = self._next
        self._next = first + STEP
        return first

    def resume(self, last: int) -> None:
        """Give only ids above `last` from now on."""
        self._next = max(self._next, self._from_tick((last >> WORKER_BITS) + 1))

    @property
    def last(self) -> int:
        """The highest id given so far; after a restart, `resume` goes on from it."""
        return max(self._next - STEP, 0)

    def _from_tick(self, tick: int) -> int:
        return (tick << WORKER_BITS) | self.worker


def time_of(snowflake: int) -> int:
    """When an id was made, in microseconds, to the millisecond."""
    return ((snowflake >> (WORKER_BITS + SEQUENCE_BITS)) + EPOCH_MS) * 1000
