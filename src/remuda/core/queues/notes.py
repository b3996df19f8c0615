"""The notes of a queue's messages: where each stands in the log, and how many a message waits for (G2)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from remuda.core.queues.tables import PagedTable
from remuda.model.messages import cell
from remuda.model.notes import NOTE, note_of
from remuda.model.records import Appended

_PAIR: Final = struct.Struct("<QQ")


class Notes:
    """By offset of the message, its notes in the order in which they came: the number and the offset of each.

    A sleeping message costs a few hundred bytes, whatever its notes hold.
    """

    __slots__ = ("awaited", "table", "unheard")

    def __init__(self) -> None:
        self.table = PagedTable[int, bytes]()
        self.awaited: dict[int, int] = {}
        """How many notes a message waits for that is to wake with more than the next. Not kept by a restart, after
        which any note wakes it."""

        self.unheard: set[int] = set()
        """During a replay: messages whose wait a note should have ended, but the log ends before it says so."""

    def __len__(self) -> int:
        return self.table.size

    def count(self, offset: int) -> int:
        return len(self.table.get(offset, b"")) // _PAIR.size

    def places(self, offset: int) -> list[int]:
        """The offsets of a message's notes."""
        return [at for _, at in _PAIR.iter_unpack(self.table.get(offset, b""))]

    def has(self, offset: int, number: int) -> bool:
        """Whether a message has a note of this number."""
        pairs: bytes = self.table.get(offset, b"")
        wanted, at = number.to_bytes(8, "little"), -1
        while (at := pairs.find(wanted, at + 1)) >= 0:
            if at % _PAIR.size == 0:
                return True
        return False

    def add(self, offset: int, number: int, at: int) -> None:
        self.table[offset] = self.table.get(offset, b"") + _PAIR.pack(number, at)

    def forget(self, first: int, count: int) -> None:
        for offset in range(first, first + count):
            self.table.pop(offset, None)
            self.awaited.pop(offset, None)

    def take(self, first: int, count: int) -> dict[int, bytes]:
        """Remove the notes of messages that go to another queue."""
        taken = {offset: self.table[offset] for offset in range(first, first + count) if offset in self.table}
        self.forget(first, count)
        return taken


def runs_of(pages: Iterable[Mapping[int, bytes]]) -> Iterator[tuple[int, int]]:
    """The places of all notes in a table's pages."""
    for page in pages:
        for pairs in page.values():
            yield from ((at, 1) for _, at in _PAIR.iter_unpack(pairs))


def notes_in(record: Appended) -> Iterator[tuple[str, int, int, int]]:
    """The notes in a record: queue and offset of the message, number, and the note's own offset."""
    names = record.messages.name
    if names == NOTE or (isinstance(names, list) and NOTE in names):
        for row in range(len(record)):
            if cell(names, row) != NOTE or cell(record.queues, row):
                continue
            note = note_of(cell(record.messages.headers, row))
            if note is not None:
                yield note.queue, note.offset, note.number, record.first + row
