"""Messages that ended without success and are kept, found by offset and by when they ended."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Final

from remuda.core.queues.ranges import MessageRange, RangeMap
from remuda.model.state import State

_SPARE: Final = 1_000


class ParkedMessages(RangeMap):
    """Messages that ended, counted by how."""

    __slots__ = ("_ends", "_most", "counts")

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[State, int] = {}
        self._ends: list[tuple[int, int]] | None = None
        """When each range ended, and where it begins, the newest last; some that are gone, too. Kept from the first
        time that somebody asks for the newest."""
        self._most = 0
        """With how many it is made anew, so that those that are gone do not pile up."""

    def add(self, piece: MessageRange) -> None:
        super().add(piece)
        self.counts[piece.state] = self.counts.get(piece.state, 0) + piece.count
        self._note(piece)

    def remove(self, first: int, count: int) -> list[MessageRange]:
        taken = super().remove(first, count)
        for piece in taken:
            self.counts[piece.state] -= piece.count
        if self._ends is not None and taken:
            rest = self.holding(first + count)
            if rest is not None and rest.first == first + count:
                self._note(rest)
        return taken

    def newest(self) -> Iterator[MessageRange]:
        """All ranges, those that ended last first. They may not change meanwhile."""
        ends = self._ends
        if ends is None:
            ends = self._ends = sorted((piece.time, piece.first) for piece in self)
            self._most = 2 * len(ends) + _SPARE
        told = None
        for time, first in reversed(ends):
            piece = self.holding(first)
            if piece is not None and (piece.time, piece.first) == (time, first) != told:
                yield piece
            told = time, first

    def _note(self, piece: MessageRange) -> None:
        ends = self._ends
        if ends is None:
            return
        if len(ends) < self._most:
            insort(ends, (piece.time, piece.first))
        else:
            self._ends = None
