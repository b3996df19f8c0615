"""Ends that speak AMQP: RabbitMQ, or another server of this kind. At least once: confirmed, and only then answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.codec.methods import BasicPublish
from remuda.amqp.errors import AmqpError, ChannelClosed, ConnectionLost
from remuda.model.errors import RemudaError
from remuda.model.messages import Messages
from remuda.server.amqp.messages.inbound import Inbound
from remuda.server.amqp.messages.outbound import properties_of
from remuda.server.amqp.protocol.failures import NOT_FOUND, Failure
from remuda.server.amqp.protocol.request_reader import Publications
from remuda.server.shovels.definition import Place, Shovel
from remuda.server.shovels.ends import Answer

_OPENING: Final = 10.0
_CONFIRMING: Final = 60.0
_BATCH: Final = 1000
T = TypeVar("T")


class Linked:
    """A connection whose waiting is done by threads."""

    def __init__(self, place: Place, uri: str, name: str) -> None:
        self.place = place
        # Of its own, so that a broker that does not answer holds up no other; one thread opens, another may close.
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="remuda-shovel")
        self._name = name
        self._uri = uri
        self.connection: Connection | None = None

    @property
    def up(self) -> bool:
        return self.connection is not None and self.connection.up

    async def do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def open(self) -> Connection:
        connection = Connection(self._uri, name=self._name)
        self.connection = connection
        await self.do(partial(connection.open, _OPENING))
        return connection

    async def ensure_queue(self) -> None:
        """Declare the queue, unless it is there, however it was declared."""
        connection, place = self.connection, self.place
        assert connection is not None
        assert place.queue is not None
        name = place.queue

        def ensure() -> None:
            try:
                _once(connection, lambda channel: channel.declare_queue(name, passive=True))
            except ChannelClosed as error:
                if error.code != NOT_FOUND or place.predeclared:
                    raise
                _once(connection, lambda channel: channel.declare_queue(name, arguments=place.arguments))

        await self.do(ensure)

    async def ensure_exchange(self) -> None:
        connection, exchange = self.connection, self.place.exchange
        assert connection is not None
        assert exchange is not None
        await self.do(lambda: _once(connection, lambda one: one.declare_exchange(exchange, passive=True)))

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(RemudaError):
                await self.do(connection.close)
        self._executor.shutdown(wait=False)


def _once(connection: Connection, ask: Callable[[Channel], Any]) -> Any:
    """Ask on a channel of its own: a refusal costs no other."""
    channel = connection.channel()
    try:
        return ask(channel)
    finally:
        with contextlib.suppress(AmqpError):
            channel.close()


class AmqpBatch:
    """Deliveries of a consumer."""

    def __init__(self, channel: Channel, deliveries: list[Delivery], messages: Messages) -> None:
        self._channel = channel
        self._deliveries = deliveries
        self.messages = messages

    @property
    def marks(self) -> list[str]:
        return [""] * len(self._deliveries)

    @property
    def again(self) -> list[bool]:
        return [one.redelivered for one in self._deliveries]

    async def stored(self, rows: Sequence[int]) -> None:
        self._channel.ack([self._deliveries[row] for row in rows])

    async def reject(self, rows: Sequence[int], reason: str) -> None:
        for row in rows:
            self._channel.nack(self._deliveries[row], requeue=False)

    async def renew(self) -> None:
        """AMQP has no such thing: the broker's consumer timeout counts."""


class AmqpSource:
    """A queue of RabbitMQ, or one of its exchanges, by a durable queue that is bound to it."""

    def __init__(self, shovel: Shovel, linked: Linked) -> None:
        self._shovel = shovel
        self._linked = linked
        self._inbound = Inbound()
        self._arrived = asyncio.Event()
        self._channel: Channel | None = None
        self._consumer: Consumer | None = None

    @property
    def up(self) -> bool:
        return self._linked.up and self._consumer is not None and self._consumer.ended is None

    @property
    def _queue(self) -> str:
        return self._linked.place.queue or self._shovel.own_queue

    async def open(self) -> int:
        connection = await self._linked.open()
        place, queue = self._linked.place, self._queue
        if place.exchange is None:
            await self._linked.ensure_queue()
        else:
            await self._linked.ensure_exchange()
        loop = asyncio.get_running_loop()

        def start() -> int:
            channel = self._channel = connection.channel(prefetch=min(self._shovel.prefetch, 65535))
            if place.exchange is not None:
                channel.declare_queue(queue, arguments=place.arguments)
                channel.bind_queue(queue, place.exchange, place.key or "")
            waiting = channel.declare_queue(queue, passive=True).message_count
            self._consumer = channel.consume(queue)
            return waiting

        waiting = await self._linked.do(start)
        assert self._consumer is not None

        def notice() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._arrived.set)

        self._consumer.listen(notice)
        return waiting

    async def receive(self) -> AmqpBatch:
        channel, consumer = self._channel, self._consumer
        assert channel is not None
        assert consumer is not None
        while True:
            self._arrived.clear()
            taken = consumer.take(_BATCH)
            if taken:
                readable = self._readable(channel, taken)
                if readable is not None:
                    return readable
            elif consumer.ended is not None:
                raise consumer.ended
            else:
                await self._arrived.wait()

    def _readable(self, channel: Channel, taken: list[Delivery]) -> AmqpBatch | None:
        """The deliveries as a batch, without those whose properties no broker here can read."""
        fine: list[Delivery] = []
        publications: list[Publications] = []
        for one in taken:
            try:
                self._inbound.facts(one.raw_properties)
            except Failure:
                channel.nack(one, requeue=False)
                continue
            fine.append(one)
            method = BasicPublish(0, one.exchange, one.routing_key)
            publications.append(Publications(method, one.raw_properties, [one.body]))
        if not fine:
            return None
        return AmqpBatch(channel, fine, self._inbound.batch("", publications, time.time_ns() // 1000))

    async def forget(self) -> None:
        connection = self._linked.connection
        if connection is not None and connection.up and self._linked.place.exchange is not None:
            await self._linked.do(lambda: _once(connection, lambda one: one.delete_queue(self._queue)))

    async def close(self) -> None:
        await self._linked.close()


class AmqpTarget:
    """A queue or an exchange of RabbitMQ."""

    def __init__(self, linked: Linked) -> None:
        self._linked = linked
        self._channel: Channel | None = None

    @property
    def up(self) -> bool:
        return self._linked.up

    async def open(self) -> None:
        connection = await self._linked.open()
        if self._linked.place.queue is not None:
            await self._linked.ensure_queue()
        else:
            await self._linked.ensure_exchange()
        self._channel = await self._linked.do(partial(connection.channel, confirms=True))

    async def deliver(self, messages: Messages, again: Sequence[bool], marks: Sequence[str]) -> Answer:
        channel, place = self._channel, self._linked.place
        if channel is None:
            raise ConnectionLost("the target is not open")
        exchange, key = place.exchange or "", place.queue if place.queue is not None else place.key
        outgoing = [
            Outgoing(exchange, one.name if key is None else key, properties_of(one), one.body) for one in messages
        ]
        receipt = await self._linked.do(partial(channel.publish_many, outgoing))
        async with asyncio.timeout(_CONFIRMING):
            with contextlib.suppress(AmqpError):
                await receipt
        if receipt.error is not None:
            raise receipt.error
        refused = dict.fromkeys(sorted(receipt.nacked), f"{place.shown()} refused it")
        return Answer([row for row in range(len(messages)) if row not in refused], refused, {})

    async def close(self) -> None:
        await self._linked.close()
