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
_FULL: Final = 128 * 16
"""Bytes of a page of notes."""
_PAGE: Final = 1 << 48
"""Added to a message's offset for each further page of its notes."""


class Notes:
    """By offset of the message, its notes in the order in which they came: the number and the offset of each.

    A sleeping message costs a few hundred bytes, whatever its notes hold. The ten thousandth note costs what the first
    does: one with many has them in pages, of which only the last one grows, and their numbers in a set.
    """

    __slots__ = ("_numbers", "awaited", "table", "unheard")

    def __init__(self) -> None:
        self.table = PagedTable[int, bytes]()
        """Pages of notes: the first by the message's offset, the others by that and their own number."""
        self._numbers: dict[int, set[int]] = {}
        """Of messages with more than a page, the numbers of all notes."""
        self.awaited: dict[int, int] = {}
        """How many notes a message waits for that is to wake with more than the next. Not kept by a restart, after
        which any note wakes it."""

        self.unheard: set[int] = set()
        """During a replay: messages whose wait a note should have ended, but the log ends before it says so."""

    def __len__(self) -> int:
        return self.table.size

    def _pages(self, offset: int, skipped: int = 0) -> Iterator[bytes]:
        offset += skipped * _PAGE
        page: bytes = self.table.get(offset, b"")
        while page:
            yield page
            offset += _PAGE
            page = self.table.get(offset, b"") if len(page) == _FULL else b""

    def _numbers_of(self, offset: int) -> set[int]:
        """Of a message whose first page is full."""
        known = self._numbers.get(offset)
        if known is None:
            known = {number for page in self._pages(offset) for number, _ in _PAIR.iter_unpack(page)}
            self._numbers[offset] = known
        return known

    def count(self, offset: int) -> int:
        size = len(self.table.get(offset, b""))
        return size // _PAIR.size if size < _FULL else len(self._numbers_of(offset))

    def places(self, offset: int, after: int = 0) -> list[int]:
        """The offsets of a message's notes, without the first ones."""
        skipped, left = divmod(after * _PAIR.size, _FULL)
        found = [at for page in self._pages(offset, skipped) for _, at in _PAIR.iter_unpack(page)]
        return found[left // _PAIR.size :]

    def has(self, offset: int, number: int) -> bool:
        """Whether a message has a note of this number."""
        pairs: bytes = self.table.get(offset, b"")
        if len(pairs) == _FULL:
            return number in self._numbers_of(offset)
        wanted, at = number.to_bytes(8, "little"), -1
        while (at := pairs.find(wanted, at + 1)) >= 0:
            if at % _PAIR.size == 0:
                return True
        return False

    def add(self, offset: int, number: int, at: int) -> None:
        before = self.count(offset)
        page = offset + before * _PAIR.size // _FULL * _PAGE
        self.table[page] = self.table.get(page, b"") + _PAIR.pack(number, at)
        if page != offset:
            self._numbers_of(offset).add(number)

    def put(self, offset: int, pairs: bytes) -> None:
        """The notes of a message that came from another queue."""
        for start in range(0, len(pairs), _FULL):
            self.table[offset + start // _FULL * _PAGE] = pairs[start : start + _FULL]

    def load(self, pages: Mapping[int, bytes]) -> None:
        """Pages of a checkpoint. One from before there were several has all notes of a message in the first."""
        for key, pairs in pages.items():
            self.put(key, pairs)

    def forget(self, first: int, count: int) -> None:
        for offset in range(first, first + count):
            page = offset
            while len(self.table.pop(page, b"")) == _FULL:
                page += _PAGE
            self._numbers.pop(offset, None)
            self.awaited.pop(offset, None)

    def take(self, first: int, count: int) -> dict[int, bytes]:
        """Remove the notes of messages that go to another queue."""
        here = [offset for offset in range(first, first + count) if offset in self.table]
        taken = {offset: b"".join(self._pages(offset)) for offset in here}
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
