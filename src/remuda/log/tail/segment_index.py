"""Where things are in a segment of the tail: messages by offset and by id, events by the messages they concern.

One small entry for every 64 KiB of the file, whatever the length of the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from remuda.model.records import Appended, Events, Record

INDEX_STEP: Final = 64 * 1024
_NEIGHBOURS: Final = 6
"""Offsets are noted in groups of 2 to this power."""
_BUCKET: Final = 12
"""For larger groups, of 2 to this power, it is noted which blocks concern them."""
_NONE: Final = (1 << 63) - 1
"""Above every id."""
_WIDE: Final = 64
"""An event that concerns more groups than this is noted as a range."""


class Block(NamedTuple):
    """From byte `start` to `end`, where the rows from number `following` on begin; None where it is the last block."""

    start: int
    end: int | None
    following: int | None


class SparseIndex:
    """From ascending numbers to the bytes where they begin."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._starts = array("q")
        self.due = 0
        """The byte from which on the next number is noted."""

    def add(self, number: int, start: int) -> None:
        if start >= self.due:
            # Readers look for a number first: its start must be there by then.
            self._starts.append(start)
            self._numbers.append(number)
            self.due = start + INDEX_STEP

    def block(self, number: int) -> Block | None:
        """The frames that may hold `number`."""
        entry = bisect_right(self._numbers, number) - 1
        if entry < 0:
            return None
        if entry + 1 < len(self._numbers):
            return Block(self._starts[entry], self._starts[entry + 1], self._numbers[entry + 1])
        return Block(self._starts[entry], None, None)


class _Content:
    """Which messages the frames of one block hold or concern."""

    __slots__ = ("end", "groups", "hashes", "high", "last", "low", "start", "wide")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end: int | None = None
        self.groups: set[int] | array[int] = set()
        self.wide: list[range] = []
        self.hashes: set[int] | array[int] = set()
        self.low = _NONE
        self.high = -1
        """The lowest and the highest id that is a number."""
        self.last = -1
        """The group that was noted last."""

    def freeze(self) -> None:
        """Take less room: nothing more is added."""
        self.groups = array("q", sorted(self.groups))
        self.hashes = array("q", sorted(self.hashes))

    def tells_of(self, offset: int) -> bool:
        return _holds(self.groups, offset >> _NEIGHBOURS) or any(offset in one for one in self.wide)

    def may_hold(self, id: str, number: int | None) -> bool:
        if number is not None and self.low <= number <= self.high:
            return True
        return _holds(self.hashes, hash(id))


class SegmentIndex:
    """The index of one segment. Written by one thread, read by any."""

    def __init__(self) -> None:
        self.messages = SparseIndex()
        self.events = SparseIndex()
        self._blocks: list[_Content] = []
        self._telling: dict[int, list[_Content]] = {}
        self._open = _Content(0)
        self._full = 0
        """The byte from which on the next block begins."""

    def note(self, record: Record, start: int) -> None:
        """A record lies at byte `start`, behind all noted before."""
        if type(record) is Events:
            content = self._open if start < self._full else self._begin(start)
            if start >= self.events.due:
                self.events.add(record.first, start)
            for row in record.rows:
                # Neighbours are mostly answered one after the other, and a group that was noted is not noted again.
                if row.first >> _NEIGHBOURS != content.last or row.count != 1:
                    self._note_event(content, row.first, row.count)
        elif type(record) is Appended:
            content = self._open if start < self._full else self._begin(start)
            if start >= self.messages.due:
                self.messages.add(record.first, start)
            ids = record.messages.ids
            if type(ids) is not range:
                content.hashes.update(map(hash, ids or ()))  # type: ignore[union-attr]
            elif ids:
                if ids[0] < content.low:
                    content.low = ids[0]
                if ids[-1] > content.high:
                    content.high = ids[-1]

    def _note_event(self, content: _Content, offset: int, count: int) -> None:
        end = offset + count - 1
        for bucket in range(offset >> _BUCKET, (end >> _BUCKET) + 1):
            blocks = self._telling.setdefault(bucket, [])
            if not blocks or blocks[-1] is not content:
                blocks.append(content)
        first, last = offset >> _NEIGHBOURS, end >> _NEIGHBOURS
        if first == last:
            content.groups.add(first)  # type: ignore[union-attr]
        elif last - first < _WIDE:
            content.groups.update(range(first, last + 1))  # type: ignore[union-attr]
        else:
            content.wide.append(range(offset, offset + count))
        content.last = first if count == 1 else -1

    def nearby(self) -> tuple[_Content, int, int, int]:
        """The open block, the bytes up to which no other begins and no number of a message, or of an event, is due, and
        the group noted last."""
        return self._open, min(self._full, self.messages.due), min(self._full, self.events.due), self._open.last

    def _begin(self, start: int) -> _Content:
        if self._blocks:
            self._open.freeze()
            self._open.end = start
        content = self._open = _Content(start)
        self._blocks.append(content)
        self._full = start + INDEX_STEP
        return content

    def block(self, offset: int) -> Block | None:
        """The frames that may hold the message at `offset`."""
        return self.messages.block(offset)

    def telling(self, offset: int) -> Iterator[tuple[int, int | None]]:
        """The bytes, from and to, of frames with events that may concern a message, in order."""
        for content in tuple(self._telling.get(offset >> _BUCKET, ())):
            if content.tells_of(offset):
                yield content.start, content.end

    def holding(self, id: str) -> Iterator[tuple[int, int | None]]:
        """The bytes of frames that may hold a message with this id, the newest first."""
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 20 else None
        for content in reversed(tuple(self._blocks)):
            if content.may_hold(id, number):
                yield content.start, content.end


def _holds(numbers: set[int] | array[int], wanted: int) -> bool:
    if isinstance(numbers, set):
        return wanted in numbers
    at = bisect_left(numbers, wanted)
    return at < len(numbers) and numbers[at] == wanted
