"""The same work by each bare client: publish so many messages with confirms, consume so many with acknowledgement.

Every message is persistent and mandatory, goes through a topic exchange, and has an id of its own, a type and a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import aio_pika
import pika

from benchmarks.rabbitmq.jobs import BATCH, EXCHANGE, MIME_TYPE, PATIENCE, WINDOW, Job, Work, message_id
from remuda.amqp.client.confirms import Outgoing, Receipt
from remuda.amqp.client.connection import Connection
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties


def outgoing(job: Job, number: int) -> Outgoing:
    """A message as all bare clients send it."""
    properties = Properties(
        content_type=MIME_TYPE, delivery_mode=PERSISTENT, message_id=message_id(number), timestamp=int(time.time()),
        type=job.queue,
    )  # fmt: skip
    return Outgoing(EXCHANGE, job.queue, encode_properties(properties), job.body)


def fill(job: Job) -> None:
    """What the bare clients consume."""
    with Connection(job.url) as connection:
        _publish(job, connection)


def _publish(job: Job, connection: Connection) -> None:
    channel, waiting = connection.channel(confirms=True), list[Receipt]()
    with job.measured():
        for batch in job.batches:
            if len(waiting) * BATCH >= WINDOW:
                waiting.pop(0).wait(PATIENCE)
            messages = [outgoing(job, number) for number in batch]
            waiting.append(channel.publish_many(messages, mandatory=True))
        for receipt in waiting:
            receipt.wait(PATIENCE)


def remuda_publish(job: Job) -> None:
    with Connection(job.url) as connection:
        _publish(job, connection)


def remuda_consume(job: Job) -> None:
    fill(job)
    with Connection(job.url) as connection:
        channel = connection.channel(prefetch=WINDOW)
        with job.measured():
            consumer, seen = channel.consume(job.queue), 0
            while seen < job.count:
                seen += consumer.ack(consumer.get(WINDOW, PATIENCE))


def _pika_properties(job: Job, number: int) -> Any:
    return pika.BasicProperties(
        content_type=MIME_TYPE, delivery_mode=PERSISTENT, message_id=message_id(number), timestamp=int(time.time()),
        type=job.queue,
    )  # fmt: skip


def pika_blocking_publish(job: Job) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(job.url))
    channel = connection.channel()
    channel.confirm_delivery()
    with job.measured():
        for number in range(job.count):
            channel.basic_publish(EXCHANGE, job.queue, job.body, _pika_properties(job, number), mandatory=True)
    connection.close()


def pika_blocking_consume(job: Job) -> None:
    fill(job)
    connection = pika.BlockingConnection(pika.URLParameters(job.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=WINDOW)
    with job.measured():
        for seen, (method, _, _) in enumerate(channel.consume(job.queue), 1):
            last = seen == job.count
            if last or seen % BATCH == 0:
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


def pika_select_publish(job: Job) -> None:
    def ready(connection: Any, channel: Any) -> None:
        sent = confirmed = 0

        def fill_window() -> None:
            nonlocal sent
            while sent < job.count and sent - confirmed < WINDOW:
                channel.basic_publish(EXCHANGE, job.queue, job.body, _pika_properties(job, sent), mandatory=True)
                sent += 1

        def answered(frame: Any) -> None:
            nonlocal confirmed
            # A quorum queue confirms in order, so that one confirm of several covers all before it.
            confirmed = frame.method.delivery_tag if frame.method.multiple else confirmed + 1
            if confirmed >= job.count:
                job.end()
                connection.close()
            else:
                fill_window()

        def begin(frame: Any) -> None:
            job.begin()
            fill_window()

        channel.confirm_delivery(answered, callback=begin)

    _pika_select(job.url, ready)


def pika_select_consume(job: Job) -> None:
    fill(job)

    def ready(connection: Any, channel: Any) -> None:
        seen = 0

        def receive(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == job.count or seen % BATCH == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if seen == job.count:
                job.end()
                connection.close()

        def begin(frame: Any) -> None:
            job.begin()
            channel.basic_consume(job.queue, receive)

        channel.basic_qos(prefetch_count=WINDOW, callback=begin)

    _pika_select(job.url, ready)


def aio_pika_publish(job: Job) -> None:
    def message(number: int) -> aio_pika.Message:
        return aio_pika.Message(
            job.body, content_type=MIME_TYPE, delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=message_id(number), timestamp=int(time.time()), type=job.queue,
        )  # fmt: skip

    async def main() -> None:
        connection = await aio_pika.connect(job.url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            exchange = await channel.get_exchange(EXCHANGE, ensure=False)
            with job.measured():
                for start in range(0, job.count, WINDOW):
                    numbers = range(start, min(start + WINDOW, job.count))
                    await asyncio.gather(*(exchange.publish(message(number), job.queue) for number in numbers))

    asyncio.run(main())


def aio_pika_consume(job: Job) -> None:
    fill(job)

    async def main() -> None:
        connection = await aio_pika.connect(job.url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=WINDOW)
            source = await channel.get_queue(job.queue, ensure=False)
            seen, done = 0, asyncio.Event()

            async def receive(message: Any) -> None:
                nonlocal seen
                seen += 1
                if seen == job.count or seen % BATCH == 0:
                    await message.ack(multiple=True)
                if seen == job.count:
                    done.set()

            with job.measured():
                await source.consume(receive)
                await asyncio.wait_for(done.wait(), PATIENCE)

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
