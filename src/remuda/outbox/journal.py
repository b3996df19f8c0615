"""A local journal in LevelDB (O4): written before a message is sent, and cleared once the broker or database has it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidMessage, InvalidOption, Refused
from remuda.model.extras import MissingExtra
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.outbox import crashing, rows
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

    def left(self, limit: int = _CHUNK) -> list[tuple[int, Message]]:
        """The oldest messages in the journal."""
        with self._guard:
            found = []
            for key, value in self._opened().iterator():
                found.append((int.from_bytes(key), _read(value)))
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


class SafetyNet:
    """Keeps messages in the outbox's table if the broker cannot be reached.

    With a journal, they are on this machine's disk before anything else. Without one, they are lost if the database
    fails too; `lost` counts them.
    """

    def __init__(self, persist: Callable[[Messages], None], journal: Journal | None) -> None:
        self._persist = persist
        self._journal = journal
        self._drained = journal is None
        self._guard = threading.RLock()
        self.lost = 0

    def deliver(self, messages: Messages, send: Callable[[Messages], list[str]]) -> list[str]:
        if self._journal is None:
            return self._deliver(messages, send)
        messages = rows.with_ids(messages).checked()
        self.drain(send)
        numbers = self._journal.append(messages)
        crashing.point("journaled")
        ids = [messages.id(row) for row in range(len(messages))]
        try:
            ids = self._deliver(messages, send)
        except (Refused, InvalidMessage):
            self._journal.forget(numbers)
            raise
        except Exception as error:
            # In the journal it is safe, so it counts as published. It is sent before the next message is.
            self._drained = False
            _log.warning(
                "%d messages stay in the journal %s until the broker or the database works again: %s",
                len(messages), self._journal.path, error,
            )  # fmt: skip
            return ids
        crashing.point("delivered")
        self._journal.forget(numbers)
        return ids

    def drain(self, send: Callable[[Messages], list[str]]) -> int:
        """Deliver what an earlier run or failure left in the journal, before anything new."""
        if self._drained or self._journal is None:
            return 0
        with self._guard:
            total = 0
            while left := self._journal.left():
                numbers = [number for number, _ in left]
                try:
                    self._keep(Messages.of(message for _, message in left), send)
                except Exception as error:
                    _log.warning("the journal cannot be drained yet: %s", error)
                    return total
                self._journal.forget(numbers)
                total += len(numbers)
            self._drained = True
            if total:
                _log.info("%d messages of the journal were delivered", total)
            return total

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._drained = False

    def _deliver(self, messages: Messages, send: Callable[[Messages], list[str]]) -> list[str]:
        try:
            return send(messages)
        except (Refused, InvalidMessage):
            raise
        except Exception as error:
            messages = rows.with_ids(messages)
            try:
                self._persist(messages)
            except Exception as second:
                if self._journal is None:
                    self.lost += len(messages)
                    _log.error(
                        "%d messages are lost: the broker failed (%s) and so did the database (%s); a journal would "
                        "have kept them", len(messages), error, second,
                    )  # fmt: skip
                error.add_note(f"the outbox's database failed too: {second}")
                raise error from second
            _log.warning("the broker failed, so %d messages are kept in the outbox: %s", len(messages), error)
            return [messages.id(row) for row in range(len(messages))]

    def _keep(self, messages: Messages, send: Callable[[Messages], list[str]]) -> None:
        """Store left-over messages in the outbox's table; if the database fails, send them to the broker."""
        try:
            self._persist(messages)
        except Exception as error:
            try:
                send(messages)
            except Exception as second:
                second.add_note(f"the outbox's database failed too: {error}")
                raise


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
