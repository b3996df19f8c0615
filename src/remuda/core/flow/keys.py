"""The keys of a queue's messages, as numbers: eight bytes a message, and nothing for a key that has none."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

UNKNOWN: Final = 0
"""The key of a message of which nothing is known yet."""
KEYLESS: Final = 1
"""The key that all messages without one share."""
_BITS: Final = 7
_PAGE: Final = 1 << _BITS
_EMPTY: Final = array("q", [UNKNOWN] * (_PAGE + 1))

Page = tuple[int, bytes]
"""The number of a page, and its column."""


def number_of(text: str | None) -> int:
    """A key's number: the same in every process."""
    if text is None:
        return KEYLESS
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    number = int.from_bytes(digest, "little", signed=True)
    return number if number not in (UNKNOWN, KEYLESS) else 2


class KeyColumn:
    """The key of each message, by its offset."""

    __slots__ = ("_pages", "size")

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        """Keys by offset, and in the last place how many there are."""
        self.size = 0

    def get(self, offset: int) -> int:
        page = self._pages.get(offset >> _BITS)
        return UNKNOWN if page is None else page[offset & (_PAGE - 1)]

    def put(self, offset: int, number: int) -> None:
        page = self._pages.get(offset >> _BITS)
        if page is None:
            page = self._pages[offset >> _BITS] = _EMPTY[:]
        at = offset & (_PAGE - 1)
        if page[at] == UNKNOWN:
            page[_PAGE] += 1
            self.size += 1
        page[at] = number

    def forget(self, first: int, count: int) -> None:
        for offset in range(first, first + count):
            page = self._pages.get(offset >> _BITS)
            at = offset & (_PAGE - 1)
            if page is None or page[at] == UNKNOWN:
                continue
            self.size -= 1
            page[at] = UNKNOWN
            page[_PAGE] -= 1
            if not page[_PAGE]:
                del self._pages[offset >> _BITS]

    def runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """The key, first offset and count of neighbours with the same key."""
        start, stop = first, first + count
        number = self.get(first)
        for offset in range(first + 1, stop):
            following = self.get(offset)
            if following != number:
                yield number, start, offset - start
                start, number = offset, following
        yield number, start, stop - start

    def freeze(self) -> list[Page]:
        """All keys as they are now."""
        return [(number, page.tobytes()) for number, page in self._pages.items()]

    def load(self, pages: Sequence[Page]) -> None:
        for number, column in pages:
            page = array("q")
            page.frombytes(column)
            self._pages[number] = page
            self.size += page[_PAGE]
