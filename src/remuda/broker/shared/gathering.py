"""How long a commit waits for those who were along in the last ones, so that one sync does for all of them.

Guests that publish one message at a time come back a moment after their answers. Whoever commits with the first of them
makes all others wait for a sync of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import Final

_WORTHWHILE: Final = 50e-6
"""Seconds that a commit must take before anybody waits for it: one that is not synced is over sooner."""
_LONGEST: Final = 2e-3
_NEWEST: Final = 0.2
"""How much of what is expected of the next commit is what the last one took."""
_MOST_PASSED: Final = 64


class Gathering:
    """Learns from each commit what it took and who took part. After waiting in vain it waits less and less often."""

    def __init__(self) -> None:
        self._takes = 0.0
        self._last: Set[Hashable] = frozenset()
        self._before: Set[Hashable] = frozenset()
        self._passing = 0
        self._in_vain = 0

    def patience(self, here: Set[Hashable]) -> float:
        """Seconds for which a commit of those who are here should wait for others; 0 for not at all."""
        if not here or self._takes < _WORTHWHILE or self.complete(here):
            return 0.0
        if self._passing:
            self._passing -= 1
            return 0.0
        return min(self._takes, _LONGEST)

    def complete(self, here: Set[Hashable]) -> bool:
        """Whether all are here who are likely to come."""
        return self._last <= here and self._before <= here

    def waited(self, here: Set[Hashable]) -> None:
        """These are here after the wait."""
        if self.complete(here):
            self._in_vain = 0
        else:
            self._in_vain = self._passing = min(2 * self._in_vain + 1, _MOST_PASSED)

    def committed(self, here: Set[Hashable], seconds: float) -> None:
        """These were along, and the set of them is not changed any more."""
        self._takes += _NEWEST * (seconds - self._takes)
        self._last, self._before = here, self._last

    def forget(self, gone: Hashable) -> None:
        """It will not come again."""
        self._last = self._last - {gone}
        self._before = self._before - {gone}
