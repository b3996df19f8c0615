"""Queues of the type stream: every consumer reads all messages, from an offset it chooses, and takes none out.

The messages wait in their queue, which nobody empties, and are read from the event log. So a message's offset is its
place in the log: offsets grow, but those of one stream do not follow each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from remuda.amqp.codec.properties import with_headers
from remuda.amqp.codec.tables import Int64, Table, Timestamp
from remuda.broker.delivery import AsyncDelivery, in_hand
from remuda.broker.spectator import Spectator
from remuda.model.errors import BrokerClosed
from remuda.model.messages import Messages, cell
from remuda.model.records import Appended
from remuda.model.state import State
from remuda.model.values.durations import SECOND
from remuda.model.values.number_runs import merged
from remuda.server.amqp.declarations.arguments import seconds_of
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.declarations.topology import Topology
from remuda.server.amqp.error_log import ErrorLog
from remuda.server.amqp.messages.consumers import BATCH, AmqpConsumer
from remuda.server.amqp.messages.outbound import properties_of
from remuda.server.amqp.protocol.channels import Channel
from remuda.server.amqp.protocol.failures import NOT_IMPLEMENTED, PRECONDITION_FAILED, Failure

if TYPE_CHECKING:
    from remuda.server.amqp.session import ClientSession

OFFSET: Final = "x-stream-offset"
_SHORTEST: Final = 0.05
_LONGEST: Final = 30.0
"""Seconds between two looks of a consumer for more, unless it is told that there is some."""
_LOOK: Final = 0.25
_APART: Final = 0.005
"""Seconds between two looks at which streams have grown. What is published over AMQP here is looked for at once."""
_ROWS: Final = 20_000
"""After this many messages of the log, a look for those of the stream ends, and the next goes on from there."""


class StreamWatch:
    """Wakes the consumers of a stream when it has grown, or is gone: one look for all of them."""

    def __init__(self, topology: Topology, mistakes: ErrorLog) -> None:
        self._topology = topology
        self._mistakes = mistakes
        self._consumers: dict[str, set[StreamConsumer]] = {}
        self._published = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, consumer: StreamConsumer) -> None:
        self._consumers.setdefault(consumer.queue, set()).add(consumer)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, consumer: StreamConsumer) -> None:
        others = self._consumers.get(consumer.queue, set())
        others.discard(consumer)
        if not others:
            self._consumers.pop(consumer.queue, None)

    def published(self) -> None:
        """Something was published, perhaps to a stream."""
        self._published.set()

    async def _run(self) -> None:
        entered: dict[str, int | None] = {}
        try:
            while self._consumers:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._published.wait(), _LOOK)
                self._published.clear()
                for full in list(self._consumers):
                    info = await self._topology.find(full)
                    now = None if info is None else info.counts.get(State.QUEUED, 0)
                    if entered.get(full, -1) != now:
                        entered[full] = now
                        for consumer in self._consumers.get(full, ()):
                            consumer.wake()
                await asyncio.sleep(_APART)
        except BrokerClosed:
            pass
        except Exception as error:
            self._mistakes.report("the server", "looking which streams have grown", error)
        finally:
            self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


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
        self.session.server.streams.join(self)
        self.task = asyncio.create_task(self._follow())

    def wake(self) -> None:
        """The stream has grown, or is gone."""
        self._more.set()

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
                offsets, messages, further = await asyncio.to_thread(self._read, min(room, BATCH))
                if self.stopped:
                    return
                if offsets:
                    self._hand_out(offsets, messages)
                if further:
                    pause = _SHORTEST
                    continue
                if await session.server.topology.find(self.queue) is None:
                    session.cancelled(self)
                    return
                # Not all that was counted may be readable yet.
                pause = await self._rest(pause)
        except Exception as error:
            session.report(f"reading stream {self.queue}", error)
            if not self.stopped:
                session.cancelled(self)
        finally:
            session.server.streams.leave(self)

    async def _rest(self, pause: float) -> float:
        """Wait for more; returns how long to wait the next time if there is nothing."""
        try:
            await asyncio.wait_for(self._more.wait(), pause)
        except TimeoutError:
            return min(4 * pause, _LONGEST)
        return _SHORTEST

    def _read(self, most: int) -> tuple[list[int], Messages, bool]:
        """The next messages of the stream with their offsets, and whether there may be more behind them; moves the
        cursor behind what was looked through."""
        seen = 0
        for record in self._spectator.messages(self._cursor):
            rows = self._rows_of(record)[:most]
            seen += len(record)
            self._cursor = record.first + (rows[-1] + 1 if len(rows) == most else len(record))
            if rows:
                return [record.first + row for row in rows], record.messages.take(rows), True
            if seen >= _ROWS:
                break
        return [], Messages(bodies=[], name=""), seen >= _ROWS

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
