"""A local journal in LevelDB (O4): written before a message is sent, and cleared once the broker or database has it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.values.extras import MissingExtra
from remuda.outbox.records import OutboxError

_log = logging.getLogger("remuda.outbox")
_CHUNK: Final = 1000
_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Message).decode


class Journal:
    """Messages on this machine's disk, oldest first. Opened on first use; it belongs to one process at a time."""

    def __init__(self, path: str) -> None:
        if not isinstance(path, str) or not path:
            raise InvalidOption(f"journal must be the path of a directory, not {path!r}")
        self.path = Path(path)
        self._guard = threading.Lock()
        self._next = 0
        self._unreadable: set[int] = set()
        self._store: Any = None

    def append(self, messages: Messages) -> range:
        """Write messages to disk, and return their numbers."""
        with self._guard:
            store = self._opened()
            numbers = range(self._next, self._next + len(messages))
            self._next = numbers.stop
            with store.write_batch(sync=True) as batch:
                for number, message in zip(numbers, messages, strict=True):
                    batch.put(_key(number), _write(message))
        return numbers

    def forget(self, numbers: range | list[int]) -> None:
        # Not synced: a message that reappears after a power loss is sent again under the same id.
        with self._guard, self._opened().write_batch() as batch:
            for number in numbers:
                batch.delete(_key(number))

    def left(self, limit: int = _CHUNK, without: Container[int] = ()) -> list[tuple[int, Message]]:
        """The oldest messages in the journal. One that cannot be read holds up no other."""
        with self._guard:
            found = []
            for key, value in self._opened().iterator():
                if (number := int.from_bytes(key)) not in without and number not in self._unreadable:
                    try:
                        found.append((number, _read(value)))
                    except msgspec.MsgspecError as error:
                        self._unreadable.add(number)
                        _log.error("message %d of journal %s cannot be read, and stays there: %s",
                                   number, self.path, error)  # fmt: skip
                if len(found) == limit:
                    break
        return found

    def __len__(self) -> int:
        with self._guard:
            return sum(1 for _ in self._opened().iterator(include_value=False))

    def close(self) -> None:
        with self._guard:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _opened(self) -> Any:
        if self._store is None:
            leveldb = _binding()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._store = leveldb.DB(str(self.path), create_if_missing=True)
            except (leveldb.Error, OSError) as error:
                raise OutboxError(
                    f"the journal {self.path} cannot be opened: {error}. A journal belongs to one process; give each "
                    "its own"
                ) from error
            for key in self._store.iterator(include_value=False, reverse=True):
                self._next = int.from_bytes(key) + 1
                break
        return self._store


def _key(number: int) -> bytes:
    return number.to_bytes(8)


def _binding() -> Any:
    """The LevelDB binding: plyvel, or its successor, which has wheels for newer Pythons."""
    try:
        import plyvel
    except ImportError:
        try:
            import plyvel_next as plyvel
        except ImportError:
            raise MissingExtra("journals", "journal") from None
    return plyvel
