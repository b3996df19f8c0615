"""The event log as its readers see it: a port. A directory is one; another broker's stream may stand beside it.

Messages have an *offset*, events a *position*: numbers that grow, are given once and never change. In a directory they
grow by one, on a stream they jump from entry to entry. Reading changes nothing.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from remuda.model.errors import InvalidOption
from remuda.model.values.urls import AMQP, AMQPS, PathLike, Url, parse_url

if TYPE_CHECKING:
    import pyarrow as pa

    from remuda.model.message import Message
    from remuda.model.records import Appended, Event, Events, QueueChange


class Numbered(Protocol):
    """A record of rows that are numbered from `first` on."""

    @property
    def first(self) -> int: ...
    def __len__(self) -> int: ...


R = TypeVar("R", bound=Numbered)
Columns: TypeAlias = Sequence[str] | None
"""Names of columns; None for all."""


class Ends(NamedTuple):
    """Nothing before the first numbers exists any more; the next row gets the next number."""

    first_offset: int
    next_offset: int
    first_position: int
    next_position: int


class Statistics(Protocol):
    """Statistics of blocks of rows, known without reading them."""

    def statistics(self, group: int, column: str) -> tuple[Any, Any] | None:
        """The smallest and largest value of a column in a block, if known."""
        ...


Wanted: TypeAlias = Callable[[Statistics, int], bool]
"""Decides whether a block can contain a wanted row; if not, it need not be read."""


class EventLog(ABC):
    """A log of messages and events, in order. Each call sees the log as it is now."""

    def __init__(self) -> None:
        self._gaps: dict[range, None] = {}
        self._event_gaps: dict[range, None] = {}

    @property
    def gaps(self) -> tuple[range, ...]:
        """Offsets found missing while reading: collected, or lost to damage."""
        return tuple(self._gaps)

    @property
    def event_gaps(self) -> tuple[range, ...]:
        """Positions found missing while reading."""
        return tuple(self._event_gaps)

    @abstractmethod
    def ends(self) -> Ends: ...

    @abstractmethod
    def offset_at(self, time: int) -> int:
        """The first offset of a message created at `time` (microseconds) or later; the next one when there is none."""

    @abstractmethod
    def position_at(self, time: int) -> int:
        """The first position of an event at `time` (microseconds) or later; the next one when there is none."""

    @abstractmethod
    def offset_of(self, id: str) -> int | None:
        """The offset of the newest message with this id."""

    def offset_of_last(self, rows: int) -> int:
        """The offset at which the last `rows` messages begin; the first offset if there are fewer."""
        return max(self.ends().next_offset - rows, 0)

    def position_of_last(self, rows: int) -> int:
        """The position at which the last `rows` events begin; the first position if there are fewer."""
        return max(self.ends().next_position - rows, 0)

    @abstractmethod
    def message(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        """A message and the queues it was routed to; None if it is gone."""

    @abstractmethod
    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        """All events of a message, each with its time, in order."""

    @abstractmethod
    def message_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Messages from offset `start` to before `stop`, in order, as Arrow batches whose first column is the offset.

        Of some `columns` only; without the blocks that are not `wanted`, where the log knows blocks.
        """

    @abstractmethod
    def event_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Events from position `start` to before `stop`, in order, as Arrow batches; first the position."""

    @abstractmethod
    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[Appended]:
        """The same messages as records."""

    @abstractmethod
    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Events]:
        """The same events as records."""

    def follow_messages(
        self, start: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Appended]:
        """Messages from an offset, waiting for more until `stop` is set."""
        return follow(self.messages, start, poll, stop)

    def follow_events(
        self, start: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Events]:
        """Events from a position, waiting for more until `stop` is set."""
        return follow(self.events, start, poll, stop)

    def changes(self, queue: str | None = None) -> list[QueueChange]:
        """Changes of a queue, or of all, that name who made them: status, options, removal, forgotten messages. The
        oldest comes first.

        A stream keeps no such record, and returns none.
        """
        return []


def follow(read: Callable[[int], Iterator[R]], start: int, poll: float, stop: threading.Event | None) -> Iterator[R]:
    """What `read` returns from a number on, again and again from behind the last record, until `stop` is set."""
    stop = stop or threading.Event()
    while True:
        for record in read(start):
            start = record.first + len(record)
            yield record
        if stop.wait(poll):
            return


def open_event_log(url: str | PathLike | Url) -> EventLog:
    """Open the log at a URL for reading, beside its writer. Creates, locks and changes nothing."""
    place = parse_url(url)
    if place.scheme in (AMQP, AMQPS):
        from remuda.log.streams.stream_log import StreamLog

        return StreamLog(place)
    if not place.is_directory:
        raise InvalidOption(f"no event log can be read at {place}; give a directory, file:///path or amqp://host/vhost")
    from remuda.log.disk import DirectoryDisk
    from remuda.log.readers.reader import Reader

    return Reader(DirectoryDisk.of_log(place.path))
