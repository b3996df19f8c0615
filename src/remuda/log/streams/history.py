"""What each object and key said last, the same for all processes that write one stream (T3).

The stream has one order for all writers. A message is unchanged if the one before it in that order, of the same object
and key, has the same digest: so every process comes to the same verdict, and of two that publish the same at the same
moment one is news. The price: a publisher waits until its message has come back to it, a round trip more, and each
process reads the stream along, from its beginning once, and holds a digest for every object and key in it.
"""

from __future__ import annotations

import logging
import threading
from hashlib import blake2b
from typing import Final

from remuda.log.codec import Damaged
from remuda.log.streams.entries import Entry, decode_entry
from remuda.log.streams.numbers import STREAM, reference
from remuda.log.streams.source import Place, StreamSource
from remuda.log.streams.writer import StreamWriter
from remuda.model.errors import InvalidMessage, StorageError
from remuda.model.messages import cell
from remuda.model.records import Appended

_LOG: Final = logging.getLogger("remuda.log.streams")
_PATIENCE: Final = 30.0
_POLL: Final = 0.2


class ObjectHistory:
    """Follows a stream, and decides for messages that are appended by `append` whether they are unchanged."""

    def __init__(self, where: Place, stream: str = STREAM, *, timeout: float = _PATIENCE) -> None:
        self._source = StreamSource(where, stream)
        self._timeout = timeout
        self._last: dict[bytes, bytes] = {}
        self._awaited: dict[int, bool | None] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"history {self._source.stream}", daemon=True)

    def __enter__(self) -> ObjectHistory:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def append(self, writer: StreamWriter, record: Appended) -> list[bool]:
        """Log messages; returns for each whether it repeats what its object and key said before.

        All are kept; the caller delivers those that are new. Each id must be unused.
        """
        names = [reference(record.messages.id(row)) for row in range(len(record))]
        if record.messages.ids is None or len(set(names)) != len(names):
            raise InvalidMessage("messages that are checked for changes need ids of their own; nothing was logged")
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()
            self._awaited.update(dict.fromkeys(names))
        try:
            writer.append([record])
            writer.flush()
            with self._changed:
                seen = self._changed.wait_for(lambda: self._failure is not None or self._all_seen(names), self._timeout)
                if self._failure is not None:
                    raise StorageError(
                        f"the stream {self._source!r} is no longer read ({self._failure}); the messages are logged, "
                        "and whether they have changed is not known"
                    )
                if not seen:
                    raise StorageError(
                        f"the stream {self._source!r} did not show the messages within {self._timeout:g} s; they are "
                        "logged, and whether they have changed is not known"
                    )
                return [self._awaited[name] is True for name in names]
        finally:
            with self._changed:
                for name in names:
                    self._awaited.pop(name, None)

    def close(self) -> None:
        """Stop following. May be called again."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(self._timeout)
        self._source.close()

    def _all_seen(self, names: list[int]) -> bool:
        return all(self._awaited[name] is not None for name in names)

    def _run(self) -> None:
        try:
            for raw in self._source.follow(0, self._stop, _POLL):
                if raw is not None:
                    try:
                        entry = decode_entry(*raw)
                    except Damaged:
                        continue  # not Remuda's
                    self._take(entry)
        except BaseException as error:
            _LOG.exception("unchanged messages are no longer recognized: the stream %r is not read", self._source)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _take(self, entry: Entry) -> None:
        with self._changed:
            for record in entry.messages(bodies=False):
                for row in range(len(record)):
                    unchanged = self._judge(record, row)
                    if self._awaited:
                        name = reference(record.messages.id(row))
                        if name in self._awaited:
                            self._awaited[name] = unchanged
            self._changed.notify_all()

    def _judge(self, record: Appended, row: int) -> bool:
        digest = cell(record.digest, row)
        object_, key = cell(record.messages.object, row), cell(record.messages.key, row)
        if digest is None or object_ is None or key is None:
            return False
        place = _place(object_, key)
        unchanged = self._last.get(place) == digest
        self._last[place] = digest
        return unchanged


def _place(object_: str, key: str) -> bytes:
    """One value for an object and its key; the length keeps ("a", "bc") and ("ab", "c") apart."""
    name = object_.encode("utf-8", "surrogatepass")
    text = len(name).to_bytes(4, "big") + name + key.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16).digest()
