"""Messages in flight, delayed or parked, by offset. Neighbours in the same condition share one range."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence
from operator import attrgetter
from typing import Final

import msgspec

from remuda.core.queues.queue_entries import MessageRange as MessageRange
from remuda.model.state import State

_FIRST: Final = attrgetter("first")
LOAD: Final = 512

Block = MutableSequence[MessageRange]


class RangeMap:
    """Disjoint ranges in the order of their offsets, in blocks, so that a change costs the same among a million ranges.

    All blocks can be frozen at once, at no cost: each is copied when it is next changed.
    """

    __slots__ = ("_blocks", "_firsts", "_shared", "size")

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._firsts: list[int] = []
        """No range of a block begins before this."""
        self._shared: frozenset[int] = frozenset()
        """Blocks that are frozen, by identity."""
        self.size = 0

    def freeze(self) -> list[Block]:
        """The blocks as they are now, which do not change until `thaw`; the caller must not change them."""
        frozen = list(self._blocks)
        self._shared = frozenset(map(id, frozen))
        return frozen

    def thaw(self) -> None:
        self._shared = frozenset()

    def range_count(self) -> int:
        return sum(map(len, self._blocks))

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[MessageRange]:
        for block in self._blocks:
            yield from block

    def add(self, piece: MessageRange) -> None:
        self._put(piece)
        self.size += piece.count

    def _put(self, piece: MessageRange) -> None:
        """As `add`, without counting it."""
        blocks = self._blocks
        if not blocks:
            blocks.append(self._block(piece))
            self._firsts.append(piece.first)
            return
        block = blocks[-1]
        if block[-1].first < piece.first:
            if len(block) < LOAD:
                if self._shared:
                    block = self._own(-1)
                block.append(piece)
            else:
                blocks.append(self._block(piece))
                self._firsts.append(piece.first)
            return
        at = max(bisect_right(self._firsts, piece.first) - 1, 0)
        block = self._own(at)
        block.insert(self._place(block, piece.first), piece)
        if piece.first < self._firsts[at]:
            self._firsts[at] = piece.first
        if len(block) > 2 * LOAD:
            blocks.insert(at + 1, block[LOAD:])
            self._firsts.insert(at + 1, block[LOAD].first)
            del block[LOAD:]

    def add_merged(self, piece: MessageRange, within: int) -> None:
        """Add a range, merged with its left neighbour if both ended alike less than `within` apart."""
        left = self.holding(piece.first - 1)
        if left is not None and _ending(left) == _ending(piece) and abs(piece.time - left.time) < within:
            self.remove(left.first, left.count)
            piece = msgspec.structs.replace(left, count=left.count + piece.count, time=max(left.time, piece.time))
        self.add(piece)

    def find(self, first: int, count: int) -> list[MessageRange]:
        """The parts of these offsets that are here."""
        if not self.size:
            return []
        stop = first + count
        found: list[MessageRange] = []
        at, within = self._locate(first)
        while at < len(self._blocks):
            block = self._blocks[at]
            while within < len(block):
                piece = block[within]
                if piece.first == first and piece.count == count:
                    return [piece]
                if piece.first >= stop:
                    return found
                if piece.end > first:
                    found.append(piece.part(first, stop))
                within += 1
            at, within = at + 1, 0
        return found

    def holding(self, offset: int) -> MessageRange | None:
        """The whole range that this offset is part of."""
        if not self._blocks:
            return None
        at, within = self._locate(offset)
        piece = self._blocks[at][within]
        return piece if piece.first <= offset < piece.end else None

    def remove(self, first: int, count: int) -> list[MessageRange]:
        """Take out the parts of these offsets that are here."""
        if not self._blocks:
            return []
        stop = first + count
        taken: list[MessageRange] = []
        rest: list[MessageRange] = []
        at, low = self._locate(first)
        piece = self._blocks[at][low]
        if piece.first == first and piece.count == count:
            self._delete(at, low, low + 1)
            self.size -= count
            return [piece]
        if piece.first + piece.count <= first:
            low += 1
        while at < len(self._blocks):
            block = self._blocks[at]
            high = low
            while high < len(block) and block[high].first < stop:
                piece = block[high]
                taken.append(piece.part(first, stop))
                if piece.first < first:
                    rest.append(piece.part(piece.first, first))
                if piece.end > stop:
                    rest.append(piece.part(stop, piece.end))
                high += 1
            ended = high < len(block)
            if high > low and self._delete(at, low, high):
                at -= 1
            if ended:
                break
            at, low = at + 1, 0
        self.size -= sum(piece.count for piece in taken)
        for piece in rest:
            self._put(piece)
        return taken

    def _locate(self, first: int) -> tuple[int, int]:
        """The block and place of the last range that begins at `first` or before; else of the first one."""
        at = bisect_right(self._firsts, first) - 1 if len(self._firsts) > 1 else 0
        if at < 0:
            return 0, 0
        if not self._blocks:
            return at, 0
        block = self._blocks[at]
        if len(block) < 2 or block[1].first > first:
            return at, 0
        return at, max(self._place(block, first + 1) - 1, 0)

    def _delete(self, at: int, low: int, high: int) -> bool:
        """Take out part of a block; whether the block is gone with it."""
        if high - low == len(self._blocks[at]):
            del self._blocks[at], self._firsts[at]
            return True
        del self._own(at)[low:high]
        return False

    def _own(self, at: int) -> Block:
        """A block that may be changed."""
        block = self._blocks[at]
        if id(block) in self._shared:
            block = self._blocks[at] = block[:]
        return block

    # How a block is made, and where in it a range that begins at `first` belongs

    def _block(self, piece: MessageRange) -> Block:
        return [piece]

    def _place(self, block: Block, first: int) -> int:
        return bisect_left(block, first, key=_FIRST)


def _ending(piece: MessageRange) -> tuple[State, str | None, int, int]:
    return piece.state, piece.reason, piece.priority, piece.attempt
