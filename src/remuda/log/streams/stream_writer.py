"""Writing records to a stream: gathered by the entry, confirmed by the broker, and each in it once."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing, Receipt
from remuda.amqp.client.connection import Connection
from remuda.amqp.codec.properties import Properties, encode_properties
from remuda.amqp.errors import AmqpError, ChannelClosed
from remuda.log.streams.entries import ENTRY_BYTES, EntryPart, decode_entry, encode_entry, encode_records
from remuda.log.streams.stream_numbers import ROWS, STREAM
from remuda.log.streams.stream_source import Place, StreamSource, check_stream, connect, read_place
from remuda.log.tail.record_codec import Damaged
from remuda.model.errors import BrokerClosed, InvalidMessage, InvalidOption, StorageError
from remuda.model.records import Appended, Events
from remuda.model.values.durations import SECOND, Duration, micros

_LOG: Final = logging.getLogger("remuda.log.streams")
_WINDOW: Final = 8
"""Batches of entries on their way. More gather meanwhile, and go out in fewer entries."""
_BUFFER: Final = 64 << 20
_PATIENCE: Final = 30.0
_FAREWELL: Final = 3.0
"""Seconds that `close` waits for a broker that is away."""
_STALLED: Final = 5.0
"""Seconds without a confirm after which something is wrong."""
_LOOK: Final = 0.25
_MARGIN: Final = 10 * SECOND
_PROPERTIES: Final = encode_properties(Properties(content_type="application/vnd.remuda.records", delivery_mode=2))
_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_TOO_LARGE: Final = frozenset({311, _PRECONDITION_FAILED})
_LARGE: Final = 4 * ENTRY_BYTES
"""Every broker takes entries up to this size."""


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long the broker keeps entries. It removes whole segments, when it begins a new one."""

    max_age: Duration | None = "15d"
    max_bytes: int | None = None
    segment_bytes: int = 100_000_000

    def arguments(self) -> dict[str, Any]:
        """As the stream is declared."""
        found: dict[str, Any] = {"x-queue-type": "stream"}
        if self.max_age is not None:
            found["x-max-age"] = f"{max(micros(self.max_age) // SECOND, 1)}s"
        for name, value in (("max_bytes", self.max_bytes), ("segment_bytes", self.segment_bytes)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidOption(f"{name} must be a whole number of bytes from 1 on, not {value!r}")
        if self.max_bytes is not None:
            found["x-max-length-bytes"] = self.max_bytes
        found["x-stream-max-segment-size-bytes"] = self.segment_bytes
        return found


class _Sent(NamedTuple):
    entries: list[tuple[int, bytes]]
    """Sequence and body of each."""
    records: int
    """How many records are kept, counted from the first, once these are."""
    receipt: Receipt | None


class StreamWriter:
    """Appends records to a stream from any thread. One thread of its own sends them, in the order they were given.

    `append` returns at once, unless the broker accepts nothing and much has gathered. After `flush` everything is kept
    by a majority of the stream's nodes. When the connection breaks, the writer looks up which of its entries arrived
    before it sends the others again: each is in the stream once.
    """

    def __init__(
        self,
        where: Place,
        *,
        stream: str = STREAM,
        retention: Retention | None = None,
        linger: Duration = "5ms",
        timeout: float = _PATIENCE,
        owned: bool = False,
    ) -> None:
        """`owned` is whether a connection that is given ends with the writer."""
        arguments = (retention or Retention()).arguments()
        self._linger = micros(linger) / SECOND
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise InvalidOption(f"timeout must be a number of seconds above 0, not {timeout!r}")
        self._timeout = timeout
        self._owned = owned or not isinstance(where, Connection)
        if isinstance(where, Connection):
            self._connection, self.stream = where, check_stream(stream)
        else:
            options, named = read_place(where, stream)
            self.stream = check_stream(named)
            self._connection = connect(options)
        self._source = StreamSource(self._connection, self.stream)
        self._id = secrets.token_bytes(12)
        self._sequence = 0
        self._changed = threading.Condition()
        self._parts: deque[EntryPart] = deque()
        self._size = 0
        self._appended = self._taken = self._kept = 0
        self._hurry = 0
        self._still_since = 0.0
        self._sent: deque[_Sent] = deque()
        self._closing = False
        self._failure: BaseException | None = None
        self._lost: str | None = None
        try:
            self._channel = self._declare(arguments)
            self._begin()
        except BaseException:
            if self._owned:
                self._connection.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"stream {self.stream}", daemon=True)
        self._thread.start()

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def append(self, records: Sequence[Appended | Events]) -> None:
        """Accept records; they are kept after `flush`. Waits where 64 MiB have gathered already."""
        if not self._take(records, self._timeout):
            raise StorageError(
                f"the stream {self.stream!r} accepted nothing for {self._timeout:g} s, and {self._size} bytes are "
                "waiting; these records were not accepted, try again later"
            )

    def offer(self, records: Sequence[Appended | Events]) -> bool:
        """As `append`, without waiting: False where too much has gathered, and then the records are not accepted."""
        return self._take(records, 0)

    def _take(self, records: Sequence[Appended | Events], patience: float) -> bool:
        for record in records:
            if not isinstance(record, Appended | Events):
                raise InvalidMessage(f"a record is an Appended or an Events, not {record!r}; nothing was logged")
        parts = [part for part in encode_records(records) if part.rows]
        size = sum(len(part.payload) for part in parts)
        with self._changed:
            if not self._changed.wait_for(lambda: self._over() or self._size < _BUFFER, patience):
                return False
            self._check()
            if self._kept == self._appended:
                self._still_since = time.monotonic()
            self._parts += parts
            self._size += size
            self._appended += len(parts)
            if parts:
                self._changed.notify_all()
        return True

    @property
    def trouble(self) -> str | None:
        """Why appended records are not being kept at the moment; None if they are."""
        if self._failure is not None:
            return f"the stream {self.stream!r} is no longer written to: {self._failure}"
        with self._changed:
            waited = self._silence()
        if waited < _STALLED:
            return None
        why = "" if self._connection.up else f": {self._connection.last_error}"
        return f"the stream {self.stream!r} has confirmed nothing for {waited:.0f} s{why}"

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything appended so far is kept."""
        self._flush(self._timeout if timeout is None else timeout)

    def _flush(self, limit: float, silence: float = math.inf) -> None:
        """Wait for no longer than `limit`, and no longer once nothing was confirmed for `silence` seconds."""
        began = time.monotonic()
        with self._changed:
            goal = self._appended
            self._hurry = max(self._hurry, goal)
            self._changed.notify_all()
            while self._kept < goal and self._failure is None and self._silence() < silence:
                left = began + limit - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _LOOK))
            done = self._kept >= goal
            if self._failure is not None and self._kept < goal:
                raise StorageError(f"the stream {self.stream!r} is no longer written to: {self._failure}")
            if self._lost is not None:
                lost, self._lost = self._lost, None
                raise StorageError(
                    f"the stream {self.stream!r} did not keep everything: {lost}; it is not in the event log, all else "
                    "is. Raise max_message_size"
                )
            if not done:
                why = "" if self._connection.up else f" ({self._connection.last_error})"
                waited = min(time.monotonic() - began, limit)
                raise StorageError(
                    f"the stream {self.stream!r} did not confirm within {waited:.1f} s{why}; the records wait here, "
                    "and are sent as soon as it can be written"
                )

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, and end; where the stream has confirmed nothing for some seconds, without waiting for it.
        May be called again."""
        with self._changed:
            ended, self._closing = self._closing, True
            self._hurry = self._appended
            self._changed.notify_all()
        if ended:
            return
        mute = True
        try:
            limit = self._timeout if timeout is None else timeout
            self._flush(limit if self._connection.up else min(limit, _FAREWELL), _STALLED + _FAREWELL)
            mute = False
        finally:
            with self._changed:
                self._failure = self._failure or BrokerClosed("it was closed")
                self._changed.notify_all()
            if self._owned and (mute or not self._connection.up):
                self._connection.close(1.0)  # or the thread would wait for it in vain
            self._thread.join(self._timeout)
            if self._owned:
                self._connection.hurry(_FAREWELL)
            with contextlib.suppress(AmqpError):
                self._channel.close()
            if self._owned:
                self._connection.close()

    def _silence(self) -> float:
        """For how many seconds nothing was confirmed although records were waiting for it."""
        return time.monotonic() - self._still_since if self._kept < self._appended else 0.0

    def _over(self) -> bool:
        return self._closing or self._failure is not None

    def _check(self) -> None:
        if self._closing:
            raise BrokerClosed("the writer of the event log was closed; open another")
        if self._failure is not None:
            raise StorageError(f"the stream {self.stream!r} is no longer written to: {self._failure}")

    def _declare(self, arguments: dict[str, Any]) -> Channel:
        """A channel to the stream, which is created where there is none. An existing one keeps its own retention."""
        channel = self._connection.channel(confirms=True)
        for passive in (True, False, True):
            try:
                channel.declare_queue(self.stream, passive=passive, arguments=None if passive else arguments)
                return channel
            except ChannelClosed as error:
                if error.code not in (_NOT_FOUND, _PRECONDITION_FAILED):
                    raise
        raise StorageError(f"the stream {self.stream!r} keeps disappearing; nothing was written to it")

    def _begin(self) -> None:
        """Write an entry without rows: then the stream has a last entry, which tells readers where it ends."""
        self._publish([self._entry([])]).wait(self._timeout)

    def _entry(self, parts: Sequence[EntryPart]) -> tuple[int, bytes]:
        self._sequence += 1
        return self._sequence, encode_entry(self._id, self._sequence, time.time_ns() // 1000, parts)

    def _publish(self, entries: Sequence[tuple[int, bytes]]) -> Receipt:
        messages = [Outgoing("", self.stream, _PROPERTIES, body) for _, body in entries]
        return self._channel.publish_many(messages)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            if not self._closing:
                _LOG.exception("the event log's stream is no longer written to")
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _turn(self) -> bool:
        """Send what has gathered, and note what was kept; False once nothing more is to come."""
        with self._changed:
            self._changed.wait_for(self._due)
            if self._failure is not None:
                return False
            failed = self._reap()
            parts = self._gathered() if not failed and len(self._sent) < _WINDOW else []
        if failed:
            self._recover()
        if parts:
            entries = [self._entry(group) for group in _filled(parts)]
            self._send(entries, self._taken)
        return True

    def _due(self) -> bool:
        if self._failure is not None or (self._sent and self._settled(self._sent[0])):
            return True
        return bool(self._parts) and len(self._sent) < _WINDOW

    def _settled(self, sent: _Sent) -> bool:
        return sent.receipt is None or sent.receipt.settled

    def _reap(self) -> bool:
        """Note what was kept; True if something was not."""
        while self._sent and self._settled(self._sent[0]):
            receipt = self._sent[0].receipt
            if receipt is None or receipt.failed or receipt.error is not None:
                return True
            self._kept = self._sent.popleft().records
            self._still_since = time.monotonic()
            self._changed.notify_all()
        return False

    def _gathered(self) -> list[EntryPart]:
        """The parts to send next. Unless a caller waits for them, more may join them first."""
        if self._linger and self._taken >= self._hurry and self._size < ENTRY_BYTES:
            self._changed.wait_for(
                lambda: self._taken < self._hurry or self._size >= ENTRY_BYTES or self._failure is not None,
                self._linger,
            )
        parts: list[EntryPart] = []
        size = 0
        while self._parts and size < _WINDOW * ENTRY_BYTES:
            parts.append(self._parts.popleft())
            size += len(parts[-1].payload)
        self._size -= size
        self._taken += len(parts)
        self._changed.notify_all()
        return parts

    def _send(self, entries: list[tuple[int, bytes]], records: int) -> None:
        try:
            receipt: Receipt | None = self._publish(entries)
        except AmqpError as error:
            if self._connection.failure is not None:
                raise
            _LOG.warning("the event log is waiting for its stream: %s", error)
            receipt = None
        with self._changed:
            self._sent.append(_Sent(entries, records, receipt))
        if receipt is not None:
            receipt.when_settled(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _recover(self) -> None:
        """Look up which of the unconfirmed entries arrived, and send the others again, in their order."""
        try:
            with self._changed:
                waiting = list(self._sent)
            for sent in waiting:  # answers to what was sent after the failure say no more than the stream does
                if sent.receipt is not None:
                    with contextlib.suppress(AmqpError):
                        sent.receipt.wait(self._timeout)
            there = self._look()
            there |= self._send_large(entry for sent in waiting for entry in sent.entries if entry[0] not in there)
        except (AmqpError, StorageError) as error:
            if self._connection.failure is not None:
                raise
            _LOG.warning("the event log is waiting for its stream: %s", error)
            with self._changed:
                self._changed.wait_for(lambda: self._failure is not None, 0.5)
            return
        with self._changed:
            self._sent.clear()
        for sent in waiting:
            missing = [entry for entry in sent.entries if entry[0] not in there]
            if missing:
                self._send(missing, sent.records)
            else:
                with self._changed:
                    settled = Receipt(())
                    settled.settle()
                    self._sent.append(_Sent([], sent.records, settled))

    def _send_large(self, entries: Iterable[tuple[int, bytes]]) -> set[int]:
        """Send large entries one by one, so that one the broker refuses does not block all that follow for ever.
        Returns the sequences of all that need not be sent again: they are in the stream now, or refused.
        """
        done: set[int] = set()
        for sequence, body in entries:
            if len(body) > _LARGE:
                try:
                    self._publish([(sequence, body)]).wait(self._timeout)
                except ChannelClosed as error:
                    if error.code not in _TOO_LARGE:
                        raise
                    _LOG.error("the event log's stream refused an entry of %d bytes: %s", len(body), error)
                    with self._changed:
                        self._lost = f"an entry of {len(body)} bytes is larger than the broker takes ({error.text})"
                done.add(sequence)
        return done

    def _look(self) -> set[int]:
        """The sequences of this writer's entries in the stream, up to a fence behind which no old one can arrive."""
        fence = self._entry([])
        self._publish([fence]).wait(self._timeout)
        last = self._source.last(known=True)
        if last is None:
            return set()
        oldest = decode_entry(0, self._sent[0].entries[0][1]).time
        begin = self._source.at_time(oldest - _MARGIN, known=True)
        there: set[int] = set()
        for number, body in self._source.entries(0 if begin is None else begin.number, last.number + 1):
            with contextlib.suppress(Damaged):
                entry = decode_entry(number, body)
                if entry.writer == self._id:
                    there.add(entry.sequence)
        if fence[0] not in there:
            raise StorageError("the newest entry is not visible yet")
        return there


def _filled(parts: Sequence[EntryPart]) -> list[list[EntryPart]]:
    """Parts in order, as many to an entry as it should hold."""
    entries: list[list[EntryPart]] = []
    size = 0
    rows: dict[int, int] = {}
    for part in parts:
        counted = rows.get(part.kind, 0) + part.rows
        if not entries or size + len(part.payload) > ENTRY_BYTES or counted > ROWS:
            entries.append([])
            size, rows, counted = 0, {}, part.rows
        entries[-1].append(part)
        size += len(part.payload)
        rows[part.kind] = counted
    return entries
