"""Tells news from repetition (T3): a message whose object and key last carried the same body is unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

from remuda.core.tables import PagedTable
from remuda.model.messages import Column, Messages, cell

_DIGEST_BYTES: Final = 16


def body_digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=_DIGEST_BYTES).digest()


def history_key(object_: str, key: str) -> bytes:
    """One value for an object and its key; the length keeps ("a", "bc") and ("ab", "c") apart."""
    name = object_.encode("utf-8", "surrogatepass")
    text = len(name).to_bytes(4, "big") + name + key.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=_DIGEST_BYTES).digest()


class Compacter:
    """Remembers the hash of the last body of every object and key."""

    def __init__(self, enabled: bool = True, objects: Mapping[str, bool] | None = None) -> None:
        self._enabled = enabled
        self._objects = dict(objects or {})
        self.history = PagedTable[bytes, bytes]()

    def digests(self, messages: Messages) -> Column[bytes | None]:
        """Hashes of the bodies that carry an object and a key; None for the others."""
        if messages.object is None or messages.key is None:
            return None
        return [
            None if place is None else body_digest(body)
            for place, body in zip(_places(messages), messages.bodies, strict=True)
        ]

    def unchanged(self, messages: Messages, digest: Column[bytes | None]) -> list[bool] | None:
        """Which of the messages repeat the one before, those of the same batch included; None where none can."""
        if digest is None:
            return None
        fresh: dict[bytes, bytes] = {}
        verdicts: list[bool] = []
        for row, (place, hashed) in enumerate(_hashed(messages, digest)):
            if place is None:
                verdicts.append(False)
                continue
            last = fresh.get(place) or self.history.get(place)
            verdicts.append(last == hashed and self._compacts(messages, row))
            fresh[place] = hashed
        return verdicts

    def remember(self, messages: Messages, digest: Column[bytes | None]) -> None:
        """These messages were taken in."""
        if digest is None:
            return
        self.history.update((place, hashed) for place, hashed in _hashed(messages, digest) if place is not None)

    def _compacts(self, messages: Messages, row: int) -> bool:
        name: str | None = cell(messages.object, row)
        return self._objects.get(name or "", self._enabled)


def _places(messages: Messages) -> Iterator[bytes | None]:
    """Where each message stands in the history; None without object or key."""
    for row in range(len(messages)):
        name: str | None = cell(messages.object, row)
        key: str | None = cell(messages.key, row)
        yield None if name is None or key is None else history_key(name, key)


def _hashed(messages: Messages, digest: Column[bytes | None]) -> Iterator[tuple[bytes | None, bytes]]:
    for row, place in enumerate(_places(messages)):
        hashed: bytes | None = cell(digest, row)
        yield (place, hashed) if hashed is not None else (None, b"")
