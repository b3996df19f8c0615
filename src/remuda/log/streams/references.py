"""From the reference that an event carries to the offset of its message.

16 bytes for each message that was seen. Where an id was used again, an event belongs to the newest message before it.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge


class _Run:
    """References in order, and beside each its offset."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        self.references = array("q", [pair[0] for pair in pairs])
        self.offsets = array("q", [pair[1] for pair in pairs])

    def __len__(self) -> int:
        return len(self.references)

    def pairs(self) -> Iterator[tuple[int, int]]:
        return zip(self.references, self.offsets, strict=True)


class References:
    """The messages of all entries that were looked at. New ones gather, and are put in order when one is sought."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._fresh: list[tuple[int, int]] = []
        self._runs: list[_Run] = []
        self._covered: list[range] = []

    def add(self, entry: int, messages: Iterator[tuple[int, Sequence[int]]]) -> None:
        """The messages of an entry; once is enough."""
        with self._guard:
            if self.covers(entry):
                return
            for offset, references in messages:
                self._fresh += zip(references, range(offset, offset + len(references)), strict=True)
            self._cover(entry)

    def find(self, reference: int, position: int) -> int | None:
        """The offset of the newest message before an event; without one, of the first behind it."""
        before: int | None = None
        behind: int | None = None
        with self._guard:
            self._order()
            runs = list(self._runs)
        for run in runs:
            at = bisect_right(run.references, reference) - 1
            while at >= 0 and run.references[at] == reference:
                offset = run.offsets[at]
                if offset <= position:
                    before = offset if before is None else max(before, offset)
                    break
                behind = offset if behind is None else min(behind, offset)
                at -= 1
        return behind if before is None else before

    def covers(self, entry: int) -> bool:
        with self._guard:
            at = bisect_right(self._covered, entry, key=lambda one: one.start) - 1
            return at >= 0 and entry in self._covered[at]

    def first_covered(self, before: int) -> int:
        """The first of the entries that were all looked at up to `before`."""
        with self._guard:
            at = bisect_right(self._covered, before - 1, key=lambda one: one.start) - 1
            return self._covered[at].start if at >= 0 and self._covered[at].stop >= before else before

    def _cover(self, entry: int) -> None:
        covered = self._covered
        at = bisect_right(covered, entry, key=lambda one: one.start)
        if at and covered[at - 1].stop == entry:
            at -= 1
            covered[at] = range(covered[at].start, entry + 1)
        else:
            covered.insert(at, range(entry, entry + 1))
        if at + 1 < len(covered) and covered[at + 1].start == entry + 1:
            covered[at : at + 2] = [range(covered[at].start, covered[at + 1].stop)]

    def _order(self) -> None:
        if not self._fresh:
            return
        self._fresh.sort()
        pairs, self._fresh = self._fresh, []
        self._runs.append(_Run(pairs))
        # Runs double in length, so that a message is put in order as often as its number has digits.
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(_Run(list(merge(before.pairs(), last.pairs()))))
