"""The same work by each client: publish so many messages with confirms, consume so many with acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import aio_pika
import pika

from remuda.amqp.confirms import Outgoing, Receipt
from remuda.amqp.connection import Connection
from remuda.amqp.properties import PERSISTENT, Properties, encode_properties

WINDOW: Final = 1000
"""Unconfirmed publishes at most, and deliveries not acknowledged at most."""
_BATCH: Final = 250

Work = Callable[[str, str, bytes, int], None]
"""Of a URL, a queue, a body and a count."""


def remuda_publish(url: str, queue: str, body: bytes, count: int) -> None:
    with Connection(url) as connection:
        channel = connection.channel(confirms=True)
        message = Outgoing("", queue, encode_properties(Properties(delivery_mode=PERSISTENT)), body)
        waiting: list[Receipt] = []
        for start in range(0, count, _BATCH):
            if len(waiting) * _BATCH >= WINDOW:
                waiting.pop(0).wait(60)
            waiting.append(channel.publish_many([message] * min(_BATCH, count - start)))
        for receipt in waiting:
            receipt.wait(60)


def remuda_consume(url: str, queue: str, body: bytes, count: int) -> None:
    with Connection(url) as connection:
        consumer = connection.channel(prefetch=WINDOW).consume(queue)
        seen = 0
        while seen < count:
            deliveries = consumer.get(WINDOW, 60)
            seen += consumer.ack(deliveries)


def pika_blocking_publish(url: str, queue: str, body: bytes, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)
    for _ in range(count):
        channel.basic_publish("", queue, body, properties)
    connection.close()


def pika_blocking_consume(url: str, queue: str, body: bytes, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=WINDOW)
    for seen, (method, _, _) in enumerate(channel.consume(queue), 1):
        last = seen == count
        if last or seen % _BATCH == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if last:
            break
    channel.cancel()
    connection.close()


def _pika_select(url: str, ready: Callable[[Any, Any], None]) -> None:
    """Run pika's fast connection until `ready`'s channel closes it."""

    def opened(connection: Any) -> None:
        connection.channel(on_open_callback=lambda channel: ready(connection, channel))

    connection = pika.SelectConnection(
        pika.URLParameters(url),
        on_open_callback=opened,
        on_close_callback=lambda connection, reason: connection.ioloop.stop(),
    )
    connection.ioloop.start()


def pika_select_publish(url: str, queue: str, body: bytes, count: int) -> None:
    properties = pika.BasicProperties(delivery_mode=PERSISTENT)

    def ready(connection: Any, channel: Any) -> None:
        sent = confirmed = 0

        def fill() -> None:
            nonlocal sent
            while sent < count and sent - confirmed < WINDOW:
                channel.basic_publish("", queue, body, properties)
                sent += 1

        def answered(frame: Any) -> None:
            nonlocal confirmed
            confirmed = frame.method.delivery_tag if frame.method.multiple else confirmed + 1
            if confirmed >= count:
                connection.close()
            else:
                fill()

        channel.confirm_delivery(answered, callback=lambda frame: fill())

    _pika_select(url, ready)


def pika_select_consume(url: str, queue: str, body: bytes, count: int) -> None:
    def ready(connection: Any, channel: Any) -> None:
        seen = 0

        def receive(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == count or seen % _BATCH == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if seen == count:
                connection.close()

        channel.basic_qos(prefetch_count=WINDOW, callback=lambda frame: channel.basic_consume(queue, receive))

    _pika_select(url, ready)


def aio_pika_publish(url: str, queue: str, body: bytes, count: int) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            exchange = channel.default_exchange
            for start in range(0, count, WINDOW):
                many = min(WINDOW, count - start)
                await asyncio.gather(*(exchange.publish(message, queue, mandatory=False) for _ in range(many)))

    asyncio.run(main())


def aio_pika_consume(url: str, queue: str, body: bytes, count: int) -> None:
    async def main() -> None:
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=WINDOW)
            source = await channel.get_queue(queue, ensure=False)
            seen, done = 0, asyncio.Event()

            async def receive(message: Any) -> None:
                nonlocal seen
                seen += 1
                if seen == count or seen % _BATCH == 0:
                    await message.ack(multiple=True)
                if seen == count:
                    done.set()

            await source.consume(receive)
            await done.wait()

    asyncio.run(main())


PUBLISH: Final[dict[str, Work]] = {
    "remuda": remuda_publish,
    "pika": pika_blocking_publish,
    "pika-select": pika_select_publish,
    "aio-pika": aio_pika_publish,
}
CONSUME: Final[dict[str, Work]] = {
    "remuda": remuda_consume,
    "pika": pika_blocking_consume,
    "pika-select": pika_select_consume,
    "aio-pika": aio_pika_consume,
}
