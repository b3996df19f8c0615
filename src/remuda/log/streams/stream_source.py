"""Reading the entries of a stream over AMQP: from an entry, from a time, or the last."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.connection_options import ConnectionOptions, parse_url
from remuda.amqp.errors import AmqpError, ChannelClosed, ConsumerCancelled
from remuda.log.streams.stream_numbers import STREAM
from remuda.model.errors import InvalidOption, StorageError
from remuda.model.values.urls import AMQP, AMQPS, Url
from remuda.model.values.urls import parse_url as parse_place

AHEAD: Final = 50
"""Entries that the broker sends ahead of what is read."""
_PATIENCE: Final = 30.0
_LOOK: Final = 0.5
_COUNTED: Final = 7.0
"""RabbitMQ counts the entries of its streams every five seconds. Where it counted none for so long there are none;
where it counted some they are waited for."""
_NOT_FOUND: Final = 404
BROKER_OPTIONS: Final = frozenset({"log", "queue_type", "max_priority", "existing"})
"""What a broker's URL may say beside how to reach it."""
_NO_LOG: Final = "no"
_OFFSET: Final = "x-stream-offset"
_LAST_SECOND: Final = 253_402_300_799  # of the year 9999


Place: TypeAlias = str | Url | ConnectionOptions | Connection
"""Where a broker is, or a connection to it."""


class RawEntry(NamedTuple):
    number: int
    body: bytes


class StreamSource:
    """The entries of one stream. The connection is made when it is first needed, and lives as long as this does."""

    def __init__(self, where: Place, stream: str = STREAM) -> None:
        self._connection = where if isinstance(where, Connection) else None
        self._options: ConnectionOptions | None = None
        if not isinstance(where, Connection):
            self._options, stream = read_place(where, stream)
        self.stream = check_stream(stream)
        self._making = threading.Lock()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        options = self._options or (self._connection and self._connection.options)
        return f"{self.stream!r} at {options}"

    def connection(self) -> Connection:
        with self._making:
            if self._connection is None:
                assert self._options is not None
                self._connection = connect(self._options)
                self._finalizer = weakref.finalize(self, self._connection.close)
            return self._connection

    def close(self) -> None:
        """Close the connection, unless it is the caller's. A later read makes another."""
        with self._making:
            finalizer, self._finalizer = self._finalizer, None
            if finalizer is not None:
                self._connection = None
                finalizer()

    def last(self, *, known: bool = False) -> RawEntry | None:
        """The newest entry; None where there is none. `known` says that there are some: they need not be counted."""
        with self._consuming("last") as (channel, consumer):
            taken = self._first_come(channel, consumer, known)
            if not taken:
                return None
            # The broker hands over a whole chunk before it answers the next request, so nothing of it comes later.
            self._count(channel)
            while more := self._taken(consumer, 0.0):
                taken = more
            return _raw(taken[-1])

    def first(self, *, known: bool = False) -> RawEntry | None:
        """The oldest entry that is still there."""
        with self._consuming("first", prefetch=1) as (channel, consumer):
            taken = self._first_come(channel, consumer, known)
            return _raw(taken[0]) if taken else None

    def at_time(self, moment: int, *, known: bool = False) -> RawEntry | None:
        """An entry before which nothing arrived at a time (microseconds) or later; None beyond the last."""
        when = datetime.fromtimestamp(min(max(moment // 1_000_000, 0), _LAST_SECOND), UTC)
        with self._consuming(when, prefetch=1) as (channel, consumer):
            # The broker reads for all consumers of a channel together. A second one, for the last entry, always gets
            # something, and whatever there is for the first one has come by then.
            if not self._first_come(channel, self._joined(channel, "last"), known):
                return None
            self._count(channel)
            taken = self._taken(consumer, 0.0)
            return _raw(taken[0]) if taken else None

    def entries(self, start: int, stop: int) -> Generator[RawEntry, None, None]:
        """Entries from `start` to before `stop`, all of which are there or were."""
        if start >= stop:
            return
        with self._consuming(start) as (_, consumer):
            for entry in self._read(consumer, start, _PATIENCE):
                if entry.number < stop:
                    yield entry
                if entry.number >= stop - 1:
                    return

    def follow(self, start: int, stop: threading.Event, poll: float) -> Iterator[RawEntry | None]:
        """Entries from `start` on as they come, until `stop` is set; None whenever none comes for `poll` seconds."""
        with self._consuming(start) as (_, consumer):
            while not stop.is_set():
                for entry in self._read(consumer, start, poll, patient=False):
                    start = entry.number + 1
                    yield entry
                    if stop.is_set():
                        return
                yield None

    def _read(self, consumer: Consumer, start: int, wait: float, *, patient: bool = True) -> Iterator[RawEntry]:
        while True:
            taken = self._taken(consumer, wait)
            if not taken:
                if patient:
                    raise StorageError(
                        f"the stream {self!r} sent nothing for {wait:g} s, though entry {start} is there; read again"
                    )
                return
            for delivery in taken:
                entry = _raw(delivery)
                if entry.number >= start:  # else it was read before the connection broke
                    start = entry.number + 1
                    consumer.resume_with({_OFFSET: start})
                    yield entry
            consumer.ack(taken)

    def _first_come(self, channel: Channel, consumer: Consumer, known: bool) -> list[Delivery]:
        """What comes first, at the start or at the end of the stream; nothing where the stream is empty."""
        began = time.monotonic()
        while not (taken := self._taken(consumer, _LOOK)):
            waited = time.monotonic() - began
            known = known or self._count(channel) > 0
            if not known and waited > _COUNTED:
                return []
            if waited > _PATIENCE:
                raise StorageError(
                    f"the stream {self!r} sent nothing for {waited:.0f} s, though it has entries; read again"
                )
        return taken

    def _count(self, channel: Channel) -> int:
        """How many entries RabbitMQ counted, some seconds ago."""
        try:
            return channel.declare_queue(self.stream, passive=True).message_count
        except AmqpError as error:
            raise self._lost(error) from error

    def _joined(self, channel: Channel, where: object) -> Consumer:
        """One more consumer of a channel."""
        try:
            return channel.consume(self.stream, arguments={_OFFSET: where})
        except AmqpError as error:
            raise self._lost(error) from error

    def _taken(self, consumer: Consumer, wait: float) -> list[Delivery]:
        try:
            return consumer.get(AHEAD, timeout=wait)
        except AmqpError as error:
            raise self._lost(error) from error

    def _lost(self, error: AmqpError) -> StorageError:
        return StorageError(f"the stream {self!r} can no longer be read: {error}; read again")

    @contextlib.contextmanager
    def _consuming(self, where: object, *, prefetch: int = AHEAD) -> Iterator[tuple[Channel, Consumer]]:
        channel, consumer = self._consume(where, prefetch)
        try:
            yield channel, consumer
        finally:
            with contextlib.suppress(AmqpError):
                channel.close()

    def _consume(self, where: object, prefetch: int) -> tuple[Channel, Consumer]:
        """Consume from a place. A node without a copy of the stream refuses, and so does one whose copy is starting."""
        connection = self.connection()
        deadline = time.monotonic() + _PATIENCE
        while True:
            channel: Channel | None = None
            try:
                channel = connection.channel(prefetch=prefetch)
                channel.declare_queue(self.stream, passive=True)
                return channel, channel.consume(self.stream, arguments={_OFFSET: where})
            except AmqpError as error:
                if channel is not None:
                    with contextlib.suppress(AmqpError):
                        channel.close()
                self._check(error, connection, deadline)
                if isinstance(error, ChannelClosed | ConsumerCancelled) and len(connection.options.hosts) > 1:
                    connection.give_up(f"{error}; another node may have the stream {self.stream!r}")
                time.sleep(0.2)

    def _check(self, error: AmqpError, connection: Connection, deadline: float) -> None:
        if isinstance(error, ChannelClosed) and error.code == _NOT_FOUND:
            raise StorageError(
                f"there is no stream {self.stream!r} at {connection.options}; nothing was created. The first bus that "
                "writes its event log there creates it"
            ) from error
        if connection.failure is not None or time.monotonic() > deadline:
            raise StorageError(f"the stream {self!r} cannot be read: {error}") from error


def check_stream(stream: object) -> str:
    if not isinstance(stream, str) or not stream or len(stream.encode("utf-8", "surrogatepass")) > 255:
        raise InvalidOption(f"the name of a stream must be a string of 1 to 255 bytes, not {stream!r}")
    return stream


def read_place(where: str | Url | ConnectionOptions, stream: str = STREAM) -> tuple[ConnectionOptions, str]:
    """How to reach the broker at a URL, and the stream that its option `log` names."""
    if isinstance(where, ConnectionOptions):
        return where, stream
    url = parse_place(where)
    if url.scheme not in (AMQP, AMQPS):
        raise InvalidOption(f"a stream is at amqp://host/vhost, not at {url}")
    stream = dict(url.options).get("log", stream)
    if stream == _NO_LOG:
        raise InvalidOption(f"{url} says that no event log is kept there (log=no); name one, as log=remuda.log")
    login = "" if url.user is None else quote(url.user, safe="")
    login += "" if url.password is None else ":" + quote(url.password, safe="")
    others = [(name, value) for name, value in url.options if name not in BROKER_OPTIONS]
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in others)
    options = parse_url(
        f"{url.scheme}://{login}{'@' if login else ''}{','.join(map(str, url.hosts))}/"
        f"{quote(url.vhost or '/', safe='')}{'?' if query else ''}{query}"
    )
    return options, stream


def connect(options: ConnectionOptions) -> Connection:
    """A connection that is made again whenever it breaks, but fails at once where no host answers at first."""
    probing = msgspec.structs.replace(options, attempts=options.attempts or 2 * len(options.hosts))
    Connection(probing).open().close()
    return Connection(options).open()


def _raw(delivery: Delivery) -> RawEntry:
    return RawEntry(int(delivery.header(_OFFSET)), delivery.body)
