"""Queues of the type stream: every consumer reads all messages, from an offset it chooses, and takes none out.

The messages wait in their queue, which nobody empties, and are read from the event log. So a message's offset is its
place in the log: offsets grow, but those of one stream do not follow each other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from remuda.amqp.codec.properties import with_headers
from remuda.amqp.codec.tables import Int64, Table, Timestamp
from remuda.broker.delivery import AsyncDelivery, in_hand
from remuda.broker.spectator import Spectator
from remuda.model.messages import Messages, cell
from remuda.model.records import Appended
from remuda.model.values.durations import SECOND
from remuda.model.values.number_runs import merged
from remuda.server.amqp.declarations.arguments import seconds_of
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.messages.consumers import BATCH, AmqpConsumer
from remuda.server.amqp.messages.outbound import properties_of
from remuda.server.amqp.protocol.channels import Channel
from remuda.server.amqp.protocol.failures import NOT_IMPLEMENTED, PRECONDITION_FAILED, Failure

if TYPE_CHECKING:
    from remuda.server.amqp.session import ClientSession

OFFSET: Final = "x-stream-offset"
_SHORTEST: Final = 0.02
_LONGEST: Final = 0.25
"""Seconds between two looks for more; what is published over AMQP here is noticed at once."""
_ROWS: Final = 20_000
"""After this many messages of the log, a look for those of the stream ends, and the next goes on from there."""


class StreamConsumer(AmqpConsumer):
    """One `basic.consume` of a stream. Its answers only make room for more."""

    def __init__(
        self, session: ClientSession, channel: Channel, tag: str, queue: str, declaration: QueueDeclaration,
        spectator: Spectator, cursor: int, prefetch: int,
    ) -> None:  # fmt: skip
        super().__init__(session, channel, tag, queue, declaration, False, False)
        self._spectator = spectator
        self._cursor = cursor
        self._credit = prefetch
        self._more = asyncio.Event()

    def follow(self) -> None:
        self.session.server.streams.add(self._more)
        self.task = asyncio.create_task(self._follow())

    async def set_prefetch(self, prefetch: int) -> None:
        self._credit = prefetch or self._credit
        self._more.set()

    async def stop(self, *, keep: bool) -> None:
        self.stopped = True
        self._more.set()
        if self.task is not None and self.task is not asyncio.current_task():
            await asyncio.wait([self.task], timeout=5)

    def answered(self, count: int) -> None:
        super().answered(count)
        self._more.set()

    async def _follow(self) -> None:
        session, pause = self.session, _SHORTEST
        try:
            while not self.stopped:
                await session.writable.wait()
                self._more.clear()
                room = self._credit - self._under_way
                if room <= 0:
                    await self._more.wait()
                    continue
                before = self._cursor
                offsets, messages = await asyncio.to_thread(self._read, min(room, BATCH))
                if self.stopped:
                    return
                if offsets:
                    self._hand_out(offsets, messages)
                if self._cursor > before:
                    pause = _SHORTEST
                    continue
                if await session.server.topology.find(self.queue) is None:
                    session.cancelled(self)
                    return
                try:
                    await asyncio.wait_for(self._more.wait(), pause)
                except TimeoutError:
                    pause = min(2 * pause, _LONGEST)
        except Exception as error:
            session.server.mistakes.report(session.who, f"reading stream {self.queue}", error)
            if not self.stopped:
                session.cancelled(self)
        finally:
            session.server.streams.discard(self._more)

    def _read(self, most: int) -> tuple[list[int], Messages]:
        """The next messages of the stream with their offsets; moves the cursor behind what was looked through."""
        seen = 0
        for record in self._spectator.messages(self._cursor):
            rows = self._rows_of(record)[:most]
            seen += len(record)
            self._cursor = record.first + (rows[-1] + 1 if len(rows) == most else len(record))
            if rows:
                return [record.first + row for row in rows], record.messages.take(rows)
            if seen >= _ROWS:
                break
        return [], Messages(bodies=[], name="")

    def _rows_of(self, record: Appended) -> list[int]:
        first = max(self._cursor - record.first, 0)
        return [row for row in range(first, len(record)) if self.queue in cell(record.queues, row)]

    def _hand_out(self, offsets: list[int], messages: Messages) -> None:
        count = len(offsets)
        runs = merged((offset, 1) for offset in offsets)
        delivery = AsyncDelivery(in_hand(runs, [1] * count), messages, _settled)
        properties = [
            with_headers(properties_of(message), {OFFSET: Int64(offset)})
            for offset, message in zip(offsets, messages, strict=True)
        ]
        self._send(delivery, range(count), messages, [False] * count, properties)
        self.session.flush_socket()


async def _settled(delivery: Any, settlement: Any, runs: Any, wait: bool) -> int:
    """Nothing becomes of a stream's message when it is answered."""
    return len(delivery)


def check_stream_consumer(name: str, vhost: str, no_ack: bool, channel: Channel) -> None:
    """Refuse what RabbitMQ refuses to consumers of streams."""
    called = f"queue '{name}' in vhost '{vhost}'"
    if channel.shared_prefetch:
        raise Failure(NOT_IMPLEMENTED, f"{called} does not support global qos")
    if no_ack:
        raise Failure(NOT_IMPLEMENTED, f"automatic acknowledgement not supported by stream {called}")
    if not channel.prefetch:
        raise Failure(PRECONDITION_FAILED, f"consumer prefetch count is not set for stream {called}")


def refuse_on_stream(verb: str, name: str, vhost: str, declaration: QueueDeclaration | None) -> None:
    """Refuse a request that would take messages out of a stream."""
    if declaration is not None and declaration.is_stream:
        raise Failure(NOT_IMPLEMENTED, f"{verb} not supported by stream queues queue '{name}' in vhost '{vhost}'")


def start_of(arguments: Table, name: str, vhost: str) -> Any:
    """Where a consumer wants to begin: first, last, next, an offset, or a time in microseconds as a `Timestamp`."""
    given = arguments.get(OFFSET, "next")
    if isinstance(given, Timestamp):
        return given
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return int(given)
    if isinstance(given, str) and (given in ("first", "last", "next") or seconds_of(given) is not None):
        return given
    raise Failure(
        PRECONDITION_FAILED,
        f"invalid arg '{OFFSET}' for queue '{name}' in vhost '{vhost}': first, last, next, an offset, a timestamp or "
        "an interval such as 1h",
    )


def offset_of(spectator: Spectator, start: Any, waiting: list[tuple[int, int]], now: int) -> int:
    """The offset in the log with which a consumer begins. `waiting` is what the stream keeps."""
    log, ends = spectator.log, spectator.ends()
    first = min((run[0] for run in waiting), default=ends.next_offset)
    if start == "next":
        return ends.next_offset
    if start == "last":
        return max((sum(run) - 1 for run in waiting), default=ends.next_offset)
    if start == "first":
        return first
    if isinstance(start, Timestamp):
        return max(first, log.offset_at(int(start) * SECOND))
    if isinstance(start, str):
        return max(first, log.offset_at(now - (seconds_of(start) or 0) * SECOND))
    return max(first, int(start))
