"""Tells news from repetition (T3): a message whose object and key last carried the same body is unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Final

from remuda.core.queues.tables import PagedTable
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
        look = self.look(messages, digest)
        return [look.repeats(row, taken=True) for row in range(len(messages.bodies))]

    def look(self, messages: Messages, digest: Column[bytes | None]) -> Look:
        """To go through a batch row by row."""
        return Look(self, messages, digest)

    def remember(self, messages: Messages, digest: Column[bytes | None]) -> None:
        """Note the bodies of messages that were stored."""
        if digest is not None:
            self.history.update((entry_key, hashed) for entry_key, hashed in _hashed(messages, digest) if entry_key)

    def compacts(self, messages: Messages, row: int) -> bool:
        name: str | None = cell(messages.object, row)
        return self._objects.get(name or "", self._enabled)


class Look:
    """Goes through a batch in order: what a message is compared with may have come just before it, unless a queue
    refused that."""

    def __init__(self, compacter: Compacter, messages: Messages, digest: Column[bytes | None]) -> None:
        self._compacter = compacter
        self._messages = messages
        self._hashed = list(_hashed(messages, digest))
        self._fresh: dict[bytes, bytes] = {}
        self.verdicts: list[bool] = []

    def repeats(self, row: int, *, taken: bool = False) -> bool:
        """Whether the next message repeats the last body of its object and key. With `taken`, it is the last from now
        on, as it is anyway if it repeats it."""
        entry_key, hashed = self._hashed[row]
        repeats = False
        if entry_key is not None:
            last = self._fresh.get(entry_key) or self._compacter.history.get(entry_key)
            repeats = last == hashed and self._compacter.compacts(self._messages, row)
            if taken:
                self._fresh[entry_key] = hashed
        self.verdicts.append(repeats)
        return repeats

    def take(self, row: int) -> None:
        """The message was not refused: it is what the next ones are compared with."""
        entry_key, hashed = self._hashed[row]
        if entry_key is not None:
            self._fresh[entry_key] = hashed


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
