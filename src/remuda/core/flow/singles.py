"""Keys of which one message waits and nothing else is known: some forty bytes each, and none of them an object."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from remuda.core.flow.keys import KeyColumn
from remuda.core.queues.queue_entries import NEVER

_PARTS: Final = 256
_LEAST: Final = 8
_GONE: Final = -1.0
"""In place of the turn of a message that left before its turn."""
_SPARE: Final = 1024
_FREE: Final = array("q", [0])


class SingleMessages:
    """A line of messages, each the only one of its key, in the order of their turns and their offsets.

    Two columns hold the line. Offsets are found by key in hash tables, small ones, so that none takes long to grow; the
    keys themselves stand in the queue's column.
    """

    __slots__ = ("_counts", "_head", "_keys", "_newest", "_offsets", "_tables", "_turns", "size")

    def __init__(self, keys: KeyColumn) -> None:
        self._keys = keys
        self.size = 0
        self._offsets = array("q")
        self._turns = array("d")
        self._head = 0
        self._newest = -1
        self._tables: dict[int, array[int]] = {}
        """Offsets plus one by the hash of their keys, by a part of that hash."""
        self._counts: dict[int, int] = {}

    def takes(self, offset: int) -> bool:
        """Whether a message may stand at the end of the line."""
        return offset > self._newest

    def find(self, number: int) -> int:
        """The offset of the message of a key; -1 if there is none."""
        table = self._tables.get(number & (_PARTS - 1))
        if table is None:
            return -1
        at = self._place(table, number)
        return table[at] - 1

    def front(self) -> int:
        """The offset of the first message. There must be one."""
        turns = self._turns
        while turns[self._head] == _GONE:
            self._head += 1
        return self._offsets[self._head]

    def front_turn(self) -> float:
        """The turn of the message that `front` has found."""
        return self._turns[self._head]

    def append(self, number: int, offset: int, turn: float) -> None:
        self._offsets.append(offset)
        self._turns.append(turn)
        self._newest = offset
        self.size += 1
        part = number & (_PARTS - 1)
        count = self._counts.get(part, 0) + 1
        table = self._tables.get(part)
        if table is None:
            table = self._tables[part] = _FREE * _LEAST
        elif 3 * count > 2 * len(table):
            table = self._tables[part] = self._resized(table, 2 * len(table))
        self._counts[part] = count
        table[self._place(table, number)] = offset + 1

    def remove(self, number: int) -> tuple[int, float]:
        """Take out the message of a key, which must have one. Returns its offset and its turn."""
        offset = self._drop(number)
        at = bisect_left(self._offsets, offset, self._head)
        turn = self._turns[at]
        self._turns[at] = _GONE
        self._shrink()
        return offset, turn

    def pop(self, number: int) -> None:
        """Take out the first message, which `front` has found, and which has this key."""
        self._drop(number)
        self._head += 1
        self._shrink()

    def offsets(self) -> Iterator[int]:
        """All messages, in the order of the line."""
        turns, offsets = self._turns, self._offsets
        for at in range(self._head, len(offsets)):
            if turns[at] != _GONE:
                yield offsets[at]

    def runs(self) -> array[int]:
        """All messages as runs: three numbers each, as in a `Chunk`."""
        offsets = self._offsets[self._head :]
        if len(offsets) > self.size:
            offsets = array("q", self.offsets())
        runs = array("q", bytes(24 * self.size))
        runs[0::3] = offsets
        runs[1::3] = array("q", [1]) * self.size
        runs[2::3] = array("q", [NEVER]) * self.size
        return runs

    def _shrink(self) -> None:
        if not self.size:
            self._offsets, self._turns, self._head, self._newest = array("q"), array("d"), 0, -1
            self._tables.clear()
            self._counts.clear()
        elif self._head > _SPARE and 2 * self._head > len(self._offsets):
            del self._offsets[: self._head]
            del self._turns[: self._head]
            self._head = 0
        elif len(self._offsets) - self._head > 2 * self.size + _SPARE:
            kept = [at for at in range(self._head, len(self._turns)) if self._turns[at] != _GONE]
            self._offsets = array("q", [self._offsets[at] for at in kept])
            self._turns = array("d", [self._turns[at] for at in kept])
            self._head = 0

    def _place(self, table: array[int], number: int) -> int:
        """Where a key stands in its table, or would."""
        get, last = self._keys.get, len(table) - 1
        at = (number >> 8) & last
        while (found := table[at]) and get(found - 1) != number:
            at = (at + 1) & last
        return at

    def _resized(self, table: array[int], size: int) -> array[int]:
        resized = _FREE * size
        for found in table:
            if found:
                resized[self._place(resized, self._keys.get(found - 1))] = found
        return resized

    def _drop(self, number: int) -> int:
        """Take a key out of its table, and have those behind it move up."""
        part = number & (_PARTS - 1)
        table = self._tables[part]
        last = len(table) - 1
        at = self._place(table, number)
        offset = table[at] - 1
        assert offset >= 0, "a key that is taken out is here"
        hole = at
        while True:
            at = (at + 1) & last
            found = table[at]
            if not found:
                break
            home = (self._keys.get(found - 1) >> 8) & last
            if (at - home) & last >= (at - hole) & last:
                table[hole] = found
                hole = at
        table[hole] = 0
        count = self._counts[part] = self._counts[part] - 1
        if _LEAST < len(table) > 8 * count:
            self._tables[part] = self._resized(table, len(table) // 2)
        self.size -= 1
        return offset
