"""Messages in flight, delayed or parked, by offset. Neighbours in the same condition share one range."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.core.ready import NEVER
from remuda.model.state import State
from remuda.native import ranges


class MessageRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` neighbouring messages from offset `first` in the same condition."""

    first: int
    count: int
    state: State
    deadline: int = NEVER
    priority: int = 0
    attempt: int = 0
    lease: int = -1
    due: int = 0
    front: bool = False
    reason: str | None = None
    time: int = 0
    redelivered: bool = False
    """Whether the message was delivered before, also where that did not count as an attempt."""
    order: int = 0
    """The order of arrival among messages that came while others, whose delay is over, had yet to join the lane."""

    @property
    def end(self) -> int:
        return self.first + self.count

    def part(self, start: int, stop: int) -> MessageRange:
        if start <= self.first and stop >= self.end:
            return self
        low = max(start, self.first)
        return msgspec.structs.replace(self, first=low, count=min(stop, self.end) - low)


_FIRST: Final = attrgetter("first")
LOAD: Final = 512

Block = MutableSequence[MessageRange]


class PlainRanges:
    """What is done for every delivery: a range is added at the end and taken out whole. In C where that could be
    built."""

    __slots__ = ("_blocks", "_firsts", "_listed", "_shared", "size")

    _blocks: list[Block]
    _firsts: list[int]
    _listed: bool
    _shared: frozenset[int]
    size: int

    def add(self, piece: MessageRange) -> None:
        if self._blocks or not self._listed:
            self._put(piece)
        else:
            self._blocks.append([piece])
            self._firsts.append(piece.first)
        self.size += piece.count

    def take_whole(self, first: int, count: int, lease: int) -> MessageRange | None:
        """Take these offsets out of the one range under this lease that has them all; None if there is none."""
        blocks = self._blocks
        if len(blocks) != 1 or len(blocks[0]) != 1:
            return self._take_whole(first, count, lease)
        piece = blocks[0][0]
        if piece.lease != lease or piece.first != first or piece.count != count:
            return self._take_whole(first, count, lease)
        del blocks[0], self._firsts[0]
        self.size -= count
        return piece

    def _put(self, piece: MessageRange) -> None:
        """As `add`, anywhere in the order, and without counting it."""
        raise NotImplementedError

    def _take_whole(self, first: int, count: int, lease: int) -> MessageRange | None:
        """As `take_whole`, also if the range has more offsets, or there are other ranges."""
        raise NotImplementedError


if TYPE_CHECKING or ranges is None:
    Ranges = PlainRanges
else:
    ranges.set_range(MessageRange)
    Ranges = ranges.Ranges


class RangeMap(Ranges):
    """Disjoint ranges in the order of their offsets, in blocks, so that a change costs the same among a million ranges.

    All blocks can be frozen at once, at no cost: each is copied when it is next changed.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._blocks = []
        self._firsts = []
        """No range of a block begins before this."""
        self._shared = frozenset()
        """Blocks that are frozen, by identity."""
        self._listed = True
        """Whether a block is a list of its ranges."""
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

    def _put(self, piece: MessageRange) -> None:
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
        stop = first + count
        found: list[MessageRange] = []
        at, within = self._locate(first)
        while at < len(self._blocks):
            block = self._blocks[at]
            while within < len(block):
                piece = block[within]
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

    def _take_whole(self, first: int, count: int, lease: int) -> MessageRange | None:
        blocks = self._blocks
        if not blocks:
            return None
        at, within = self._locate(first)
        piece = blocks[at][within]
        if piece.lease != lease or count < 1 or piece.first > first or piece.first + piece.count < first + count:
            return None
        if piece.count != count:
            if piece.first != first:
                return self.remove(first, count)[0]
            rest = msgspec.structs.replace(piece, first=first + count, count=piece.count - count)
            (self._own(at) if self._shared else blocks[at])[within] = rest
            self.size -= count
            return msgspec.structs.replace(piece, count=count)
        self.size -= count
        self._delete(at, within, within + 1)
        return piece

    def remove(self, first: int, count: int) -> list[MessageRange]:
        """Take out the parts of these offsets that are here."""
        if not self._blocks:
            return []
        stop = first + count
        taken: list[MessageRange] = []
        rest: list[MessageRange] = []
        at, low = self._locate(first)
        if self._blocks[at][low].end <= first:
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
