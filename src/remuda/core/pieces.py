"""Messages that left the line: in flight, delayed or parked, found by offset. Neighbours share one piece."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

import msgspec

from remuda.core.lane import NEVER
from remuda.model.state import State


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` neighbouring messages from offset `first` that share one fate."""

    first: int
    count: int
    state: State
    deadline: int = NEVER
    high: bool = False
    attempt: int = 0
    lease: int = -1
    due: int = 0
    ahead: bool = False
    reason: str | None = None
    time: int = 0

    @property
    def end(self) -> int:
        return self.first + self.count

    def part(self, start: int, stop: int) -> Piece:
        if start <= self.first and stop >= self.end:
            return self
        low = max(start, self.first)
        return msgspec.structs.replace(self, first=low, count=min(stop, self.end) - low)


_FIRST: Final = attrgetter("first")


class Pieces:
    """Disjoint pieces in the order of their offsets."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces)

    def add(self, piece: Piece) -> None:
        self.size += piece.count
        if not self._pieces or self._pieces[-1].first < piece.first:
            self._pieces.append(piece)
        else:
            insort(self._pieces, piece, key=_FIRST)

    def add_merged(self, piece: Piece, within: int) -> None:
        """Add a piece, as one with its left neighbour when both ended alike less than `within` apart."""
        at = bisect_left(self._pieces, piece.first, key=_FIRST)
        left = self._pieces[at - 1] if at else None
        if (
            left is not None
            and left.end == piece.first
            and _fate(left) == _fate(piece)
            and abs(piece.time - left.time) < within
        ):
            self.size += piece.count
            self._pieces[at - 1] = msgspec.structs.replace(
                left, count=left.count + piece.count, time=max(left.time, piece.time)
            )
        else:
            self.add(piece)

    def find(self, first: int, count: int) -> list[Piece]:
        """The parts of these offsets that are here."""
        pieces = self._pieces
        stop = first + count
        at = max(bisect_right(pieces, first, key=_FIRST) - 1, 0)
        found = []
        while at < len(pieces) and pieces[at].first < stop:
            if pieces[at].end > first:
                found.append(pieces[at].part(first, stop))
            at += 1
        return found

    def holding(self, offset: int) -> Piece | None:
        """The whole piece that this offset is part of."""
        at = bisect_right(self._pieces, offset, key=_FIRST) - 1
        return self._pieces[at] if at >= 0 and self._pieces[at].end > offset else None

    def remove(self, first: int, count: int) -> list[Piece]:
        """Take out the parts of these offsets that are here."""
        pieces = self._pieces
        stop = first + count
        low = max(bisect_right(pieces, first, key=_FIRST) - 1, 0)
        if low < len(pieces) and pieces[low].end <= first:
            low += 1
        high = low
        taken: list[Piece] = []
        rest: list[Piece] = []
        while high < len(pieces) and pieces[high].first < stop:
            piece = pieces[high]
            taken.append(piece.part(first, stop))
            if piece.first < first:
                rest.append(piece.part(piece.first, first))
            if piece.end > stop:
                rest.append(piece.part(stop, piece.end))
            high += 1
        if taken:
            pieces[low:high] = rest
            self.size -= sum(piece.count for piece in taken)
        return taken


def _fate(piece: Piece) -> tuple[State, str | None, bool, int]:
    return piece.state, piece.reason, piece.high, piece.attempt
