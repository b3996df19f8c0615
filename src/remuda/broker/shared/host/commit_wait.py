"""How long a commit waits for guests that took part in the last ones, so that one sync serves all of them.

Guests that publish one message at a time send the next a moment after their answer. A commit with the first of them
alone would make all others wait for a sync of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import Final

_WORTHWHILE: Final = 50e-6
"""Seconds that a commit must take to be worth a wait: one without a sync takes less."""
_LONGEST: Final = 2e-3
_NEWEST: Final = 0.2
"""The weight of the last commit in the moving average of their durations."""
_MOST_PASSED: Final = 64


class CommitWait:
    """Learns from each commit how long it took and which guests took part. After waits in vain, it waits less often."""

    def __init__(self) -> None:
        self._takes = 0.0
        self._last: Set[Hashable] = frozenset()
        self._before: Set[Hashable] = frozenset()
        self._passing = 0
        self._in_vain = 0

    def patience(self, here: Set[Hashable]) -> float:
        """Seconds for which a commit of these guests should wait for others; 0 for not at all."""
        if not here or self._takes < _WORTHWHILE or self.complete(here):
            return 0.0
        if self._passing:
            self._passing -= 1
            return 0.0
        return min(self._takes, _LONGEST)

    def complete(self, here: Set[Hashable]) -> bool:
        """Whether all guests are here that are likely to come."""
        return self._last <= here and self._before <= here

    def waited(self, here: Set[Hashable]) -> None:
        """Note which guests are here after the wait."""
        if self.complete(here):
            self._in_vain = 0
        else:
            self._in_vain = self._passing = min(2 * self._in_vain + 1, _MOST_PASSED)

    def committed(self, here: Set[Hashable], seconds: float) -> None:
        """Note which guests took part in a commit. The caller no longer changes the set."""
        self._takes += _NEWEST * (seconds - self._takes)
        self._last, self._before = here, self._last

    def forget(self, gone: Hashable) -> None:
        """Forget a guest that will not come again."""
        self._last = self._last - {gone}
        self._before = self._before - {gone}
