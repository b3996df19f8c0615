"""The port that every search index implements, and the values that go through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from remuda.index.copies import Copy
from remuda.index.query import Page, Query
from remuda.model.errors import Conflict, StorageError
from remuda.model.state import State

MESSAGE_COLUMNS: Final = (
    "offset", "created", "id", "name", "topics", "object", "key", "timestamp", "mime_type", "queues", "body",
)  # fmt: skip
"""The columns of a message that an index uses; a batch may hold more."""
EVENT_COLUMNS: Final = ("position", "time", "queue", "state", "first", "count", "consumer", "attempt", "reason", "to")


class Reached(NamedTuple):
    """How far an index has come: the offset and the position that come next, and the time of what was applied last."""

    offset: int = 0
    position: int = 0
    time: int = 0


class Lag(msgspec.Struct, frozen=True):
    """How far an index is behind its log."""

    messages: int
    events: int
    seconds: float
    """The age of what was applied last, where there is more; 0 where there is not."""


class Document(NamedTuple):
    """A message and its copies as they are now, for filling an index in bulk."""

    offset: int
    created: int
    id: str
    name: str
    topics: tuple[str, ...]
    object: str | None
    key: str | None
    timestamp: int | None
    mime_type: str
    size: int
    text: str
    """The body, as far as it is text."""
    copies: Sequence[tuple[str, Copy]]
    """By queue; the empty name stands for none."""


class Tables(Protocol):
    """The tables of a log, with the columns above and perhaps more."""

    def messages(self, start: int, stop: int) -> Iterator[pa.RecordBatch]: ...
    def events(self, start: int, stop: int) -> Iterator[pa.RecordBatch]: ...


class IndexMoved(Conflict):
    """Another process has moved the index on; read where it is now, and continue from there."""


class IndexUnusable(StorageError):
    """The index cannot be read or written. The log is intact: the index can be rebuilt from it."""


class SearchIndex(Protocol):
    """Finds messages. Implementations give the same answers to the same queries over the same log."""

    def reached(self) -> Reached | None:
        """How far it has come; None when nothing was begun."""

    def apply(
        self, messages: Sequence[pa.RecordBatch], events: Sequence[pa.RecordBatch], after: Reached, reached: Reached
    ) -> None:
        """Take in what lies between two points of the log, in the log's order.

        Raises `IndexMoved`, and changes nothing, when the index is not at `after`.
        """

    def load(self, documents: Iterable[Document]) -> None:
        """Take in many messages at once, none of which is in the index, without moving what it has reached."""

    def begin(self, reached: Reached) -> None:
        """Start over with nothing, from a point of the log. What is there is found until `finish`."""

    def finish(self) -> None:
        """From now on, what was taken in since `begin` is what is found."""

    def forget(self, gone: Iterable[range]) -> None:
        """Remove the messages at these offsets, those that are there."""

    def search(self, query: Query) -> Page: ...

    def counts(self) -> Mapping[str, Mapping[State, int]]:
        """How many messages are in which state, by queue; those that moved on are counted where they went."""

    def refresh(self) -> None:
        """Return once all that was taken in can be found."""

    def drop(self) -> None:
        """Remove the index and all it holds."""

    def describe(self) -> str:
        """Where it is, for people."""

    def close(self) -> None: ...
