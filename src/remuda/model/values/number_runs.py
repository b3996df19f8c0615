"""Runs of neighbouring numbers, such as offsets: the first of them, and how many."""

from __future__ import annotations

from collections.abc import Iterable

Run = tuple[int, int]


def merged(runs: Iterable[Run]) -> list[Run]:
    """Runs in order, those that touch or overlap as one."""
    joined: list[Run] = []
    for first, count in sorted(runs):
        if joined and first <= sum(joined[-1]):
            start, length = joined[-1]
            joined[-1] = (start, max(length, first + count - start))
        else:
            joined.append((first, count))
    return joined
