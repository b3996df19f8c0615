"""The port that every search index implements, and the values that go through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from remuda.index.query import Page, Query
from remuda.model.errors import Conflict, StorageError
from remuda.model.state import State

MESSAGE_COLUMNS: Final = ("offset", "created", "id", "name", "topics", "object", "key", "mime_type", "queues", "body")
"""The columns of a message that an index uses; a batch may hold more."""
EVENT_COLUMNS: Final = ("position", "time", "queue", "state", "first", "count", "attempt", "reason")


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
    mime_type: str
    size: int
    text: str
    """What `searchable` made of the body."""
    copies: Sequence[CopyState]


class CopyState(NamedTuple):
    """A message's copy in one queue, its state as in the log or as an index keeps it (`kept_state`)."""

    queue: str
    state: str
    modified: int
    attempts: int
    reason: str | None
    position: int = -1
    """Of its last event; -1 where there is none."""


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
