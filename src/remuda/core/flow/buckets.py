"""Token buckets (F3), each one number: when its next start would be on time. A full bucket is any time gone by, so an
idle key needs none, and a restart brings no second burst."""

from __future__ import annotations

from math import ceil, floor
from typing import Final

from remuda.core.queues.tables import PagedTable
from remuda.model.queues.rates import rate

MOST: Final = 1 << 40
Weights = PagedTable[int, int]
"""What messages count as, by offset, where that is not one."""


class Bucket:
    """How starts are paced: one in each interval, and some at once after a pause."""

    __slots__ = ("interval", "slack")

    def __init__(self, text: str) -> None:
        wanted = rate(text)
        self.interval = wanted.interval
        self.slack = (wanted.at_once - 1) * wanted.interval

    def opens(self, due: float, now: int, ahead: int = 0) -> int:
        """When one more may start, after `ahead` that are about to; any time gone by means now."""
        if not ahead:
            return ceil(due - self.slack)
        return ceil(max(due, now) + ahead * self.interval - self.slack)

    def room(self, due: float, now: int) -> int:
        """How many may start now."""
        spare = now + self.slack - max(due, now)
        return 0 if spare < 0 else min(floor(spare / self.interval) + 1, MOST)

    def spend(self, due: float, time: int, count: int) -> float:
        """When the next start is due once `count` have started."""
        return max(due, time) + count * self.interval


def carried(before: Bucket | None, after: Bucket | None, due: float, now: int) -> float:
    """When the next start is due once the rate has changed: what was started ahead of it counts as before."""
    if before is None or after is None:
        return 0.0
    return due if due <= now else now + (due - now) * (after.interval / before.interval)


def put_right(due: float, now: int, ahead: int) -> float:
    """When the next start is due once a clock is right again that was so far ahead."""
    return due if due <= now else max(due - ahead, 0.0)


def bucket(text: str | None) -> Bucket | None:
    return None if text is None else Bucket(text)


def weight_of(weights: Weights, first: int, count: int) -> int:
    """What these messages count as together."""
    if not weights.size:
        return count
    return sum(weights.get(offset, 1) for offset in range(first, first + count))
