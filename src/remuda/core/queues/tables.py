"""Values by key, in pages: all pages can be frozen at once, and each is copied when it is next changed."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Final, TypeVar

K = TypeVar("K", int, bytes)
V = TypeVar("V")
_BITS: Final = 10
_BYTES_BITS: Final = 4


class PagedTable(MutableMapping[K, V]):
    """A dictionary whose keys are offsets or hashes."""

    __slots__ = ("_pages", "_shared", "size")

    def __init__(self, values: dict[K, V] | None = None) -> None:
        self._pages: dict[int, dict[K, V]] = {}
        self._shared: frozenset[int] = frozenset()
        """Pages that are frozen, by identity."""
        self.size = 0
        if values:
            self.update(values)

    def freeze(self) -> list[dict[K, V]]:
        """The pages as they are now, which do not change until `thaw`; the caller must not change them."""
        frozen = list(self._pages.values())
        self._shared = frozenset(map(id, frozen))
        return frozen

    def thaw(self) -> None:
        self._shared = frozenset()

    def __len__(self) -> int:
        return self.size

    def __contains__(self, key: object) -> bool:
        page = self._pages.get(_page_of(key)) if self.size else None
        return page is not None and key in page

    def __getitem__(self, key: K) -> V:
        return self._pages[_page_of(key)][key]

    def get(self, key: K, default: Any = None) -> Any:
        page = self._pages.get(_page_of(key)) if self.size else None
        return default if page is None else page.get(key, default)

    def pop(self, key: K, default: Any = None) -> Any:
        """As a dictionary's, but without a default it returns None for an unknown key."""
        if key not in self:
            return default
        value = self[key]
        del self[key]
        return value

    def __setitem__(self, key: K, value: V) -> None:
        number = _page_of(key)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = {}
        elif self._shared and id(page) in self._shared:
            page = self._pages[number] = page.copy()
        before = len(page)
        page[key] = value
        self.size += len(page) - before

    def __delitem__(self, key: K) -> None:
        number = _page_of(key)
        page = self._pages[number]
        if key not in page:
            raise KeyError(key)
        if self._shared and id(page) in self._shared:
            page = self._pages[number] = page.copy()
        del page[key]
        self.size -= 1
        if not page:
            del self._pages[number]

    def __iter__(self) -> Iterator[K]:
        for page in self._pages.values():
            yield from page

    def __repr__(self) -> str:
        return repr(dict(self))


def _page_of(key: object) -> int:
    if type(key) is int:
        return key >> _BITS
    assert type(key) is bytes
    return int.from_bytes(key[:2], "big") >> _BYTES_BITS
