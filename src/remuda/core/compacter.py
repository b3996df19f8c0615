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
            None if entry_key is None else body_digest(body)
            for entry_key, body in zip(_history_keys(messages), messages.bodies, strict=True)
        ]

    def unchanged(self, messages: Messages, digest: Column[bytes | None]) -> list[bool] | None:
        """For each message, whether it repeats the one before it, which may be of the same batch; None if none can."""
        if digest is None:
            return None
        fresh: dict[bytes, bytes] = {}
        verdicts: list[bool] = []
        for row, (entry_key, hashed) in enumerate(_hashed(messages, digest)):
            if entry_key is None:
                verdicts.append(False)
                continue
            last = fresh.get(entry_key) or self.history.get(entry_key)
            verdicts.append(last == hashed and self._compacts(messages, row))
            fresh[entry_key] = hashed
        return verdicts

    def remember(self, messages: Messages, digest: Column[bytes | None]) -> None:
        """Note the bodies of messages that were stored."""
        if digest is not None:
            self.history.update((entry_key, hashed) for entry_key, hashed in _hashed(messages, digest) if entry_key)

    def _compacts(self, messages: Messages, row: int) -> bool:
        name: str | None = cell(messages.object, row)
        return self._objects.get(name or "", self._enabled)


def _history_keys(messages: Messages) -> Iterator[bytes | None]:
    """The key of each message in the history; None without object or key."""
    for row in range(len(messages)):
        name: str | None = cell(messages.object, row)
        key: str | None = cell(messages.key, row)
        yield None if name is None or key is None else history_key(name, key)


def _hashed(messages: Messages, digest: Column[bytes | None]) -> Iterator[tuple[bytes | None, bytes]]:
    for row, entry_key in enumerate(_history_keys(messages)):
        hashed: bytes | None = cell(digest, row)
        yield (entry_key, hashed) if hashed is not None else (None, b"")
