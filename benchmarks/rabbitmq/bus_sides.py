"""The same work through whole libraries: a bus, actors, subscribers. Each gives the seconds that its work took, since
some take a while to get ready."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from benchmarks.rabbitmq.sides import WINDOW
from remuda import Bus
from remuda.amqp.confirms import Outgoing, Receipt
from remuda.amqp.connection import Connection
from remuda.broker.rabbitmq import codec
from remuda.broker.rabbitmq.topology import CHANNELS
from remuda.model.messages import Messages

Timed = Callable[[str, str, bytes, int], float]
"""Of a URL, a queue, a body and a count to seconds."""

_BATCH: Final = 250
_PATIENCE: Final = 120


class _Counter:
    """Tells when so many have come."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = threading.Event()
        self._guard = threading.Lock()

    def __call__(self, came: int = 1) -> None:
        with self._guard:
            self._left -= came
            if self._left <= 0:
                self.done.set()


def _bus(url: str, queue: str, handle: Callable[..., None], *, logged: bool = False, batch: int | None = None) -> Bus:
    """With the same queue as the others have: without priorities, which cost RabbitMQ a queue within the queue for
    each; and without the event log, which they do not keep, unless it is to be `logged`."""
    bus = Bus(f"{url}?queue_type=classic&max_priority=0{'' if logged else '&log=no'}")
    bus.subscribe(queue, queue=queue, batch=batch)(handle)
    assert bus.broker
    return bus


def _publish(bus: Bus, queue: str, body: bytes, count: int) -> None:
    """In batches, of which as many are on their way as the window holds."""
    batches = iter([min(_BATCH, count - start) for start in range(0, count, _BATCH)])

    async def one_after_another() -> None:
        for size in batches:
            await bus.publish_many_async(queue, [body] * size)

    async def main() -> None:
        await asyncio.gather(*(one_after_another() for _ in range(WINDOW // _BATCH)))

    asyncio.run(main())


def _ignore(body: bytes) -> None: ...


def remuda_publish(url: str, queue: str, body: bytes, count: int, *, logged: bool = False) -> float:
    with _bus(url, queue, _ignore, logged=logged) as bus:
        began = time.perf_counter()
        _publish(bus, queue, body, count)
        took = time.perf_counter() - began
        bus.broker.remove_queue(queue)
        return took


def remuda_consume(
    url: str, queue: str, body: bytes, count: int, *, logged: bool = False, batch: int | None = None
) -> float:
    counter = _Counter(count)

    def handle(body: bytes) -> None:
        counter()

    def handle_many(bodies: list[bytes]) -> None:
        counter(len(bodies))

    with _bus(url, queue, handle if batch is None else handle_many, logged=logged, batch=batch) as bus:
        _publish(bus, queue, body, count)
        began = time.perf_counter()
        bus.start()
        assert counter.done.wait(_PATIENCE)
        took = time.perf_counter() - began
        bus.stop()
        bus.broker.remove_queue(queue)
        return took


def remuda_end_to_end(url: str, queue: str, body: bytes, count: int, *, logged: bool = False) -> float:
    counter = _Counter(count)

    def handle(body: bytes) -> None:
        counter()

    with _bus(url, queue, handle, logged=logged) as bus:
        bus.start()
        began = time.perf_counter()
        _publish(bus, queue, body, count)
        assert counter.done.wait(_PATIENCE)
        took = time.perf_counter() - began
        bus.stop()
        bus.broker.remove_queue(queue)
        return took


def server_publish(url: str, queue: str, body: bytes, count: int) -> float:
    """What RabbitMQ takes in: the bytes that the bus would send, made before, by a client that does nothing else."""
    now = time.time_ns() // 1000
    columns = Messages(bodies=[body] * count, name=queue, ids=range(1 << 50, (1 << 50) + count), created=now)
    messages = [Outgoing(CHANNELS, queue, properties, body) for properties in codec.encode(columns, now)]
    with _bus(url, queue, _ignore) as bus, Connection(url) as connection:
        channel, waiting = connection.channel(confirms=True), list[Receipt]()
        began = time.perf_counter()
        for start in range(0, count, _BATCH):
            if len(waiting) * _BATCH >= WINDOW:
                waiting.pop(0).wait(_PATIENCE)
            waiting.append(channel.publish_many(messages[start : start + _BATCH], mandatory=True))
        for receipt in waiting:
            receipt.wait(_PATIENCE)
        took = time.perf_counter() - began
        bus.broker.remove_queue(queue)
        return took


def server_consume(url: str, queue: str, body: bytes, count: int) -> float:
    """What RabbitMQ gives out of what the bus published, to a client that only acknowledges."""
    with _bus(url, queue, _ignore) as bus, Connection(url) as connection:
        _publish(bus, queue, body, count)
        began = time.perf_counter()
        consumer, seen = connection.channel(prefetch=WINDOW).consume(queue), 0
        while seen < count:
            seen += consumer.ack(consumer.get(WINDOW, _PATIENCE))
        took = time.perf_counter() - began
        consumer.cancel()
        bus.broker.remove_queue(queue)
        return took


def kombu_publish(url: str, queue: str, body: bytes, count: int) -> float:
    kombu: Any = import_module("kombu")  # which has no types
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer()
        began = time.perf_counter()
        for _ in range(count):
            producer.publish(body, exchange="", routing_key=queue, delivery_mode=2)
        return time.perf_counter() - began


def kombu_consume(url: str, queue: str, body: bytes, count: int) -> float:
    kombu: Any = import_module("kombu")  # which has no types
    kombu_publish(url, queue, body, count)
    seen = 0

    def receive(content: Any, message: Any) -> None:
        nonlocal seen
        seen += 1
        message.ack()

    with kombu.Connection(url) as connection:
        source = kombu.Queue(queue, no_declare=True)
        began = time.perf_counter()
        with connection.Consumer(source, callbacks=[receive], prefetch_count=WINDOW, accept=None):
            while seen < count:
                connection.drain_events(timeout=_PATIENCE)
        return time.perf_counter() - began


def faststream_publish(url: str, queue: str, body: bytes, count: int) -> float:
    from faststream.rabbit import RabbitBroker

    async def main() -> float:
        async with RabbitBroker(url, logger=None) as broker:
            await broker.start()
            began = time.perf_counter()
            for start in range(0, count, WINDOW):
                many = min(WINDOW, count - start)
                await asyncio.gather(*(broker.publish(body, queue, persist=True) for _ in range(many)))
            return time.perf_counter() - began

    return asyncio.run(main())


def _faststream(url: str, queue: str, body: bytes, count: int, *, filled: bool) -> float:
    from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

    async def main() -> float:
        broker = RabbitBroker(url, logger=None, default_channel=Channel(prefetch_count=WINDOW))
        seen, done = 0, asyncio.Event()

        @broker.subscriber(RabbitQueue(queue, declare=False))
        async def receive(message: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen >= count:
                done.set()

        async with broker:
            await broker.connect()
            if not filled:
                await broker.start()
            began = time.perf_counter()
            for start in range(0, count, WINDOW):
                many = min(WINDOW, count - start)
                await asyncio.gather(*(broker.publish(body, queue, persist=True) for _ in range(many)))
            if filled:
                began = time.perf_counter()
                await broker.start()
            await asyncio.wait_for(done.wait(), _PATIENCE)
            return time.perf_counter() - began

    return asyncio.run(main())


def faststream_consume(url: str, queue: str, body: bytes, count: int) -> float:
    return _faststream(url, queue, body, count, filled=True)


def faststream_end_to_end(url: str, queue: str, body: bytes, count: int) -> float:
    return _faststream(url, queue, body, count, filled=False)


def _dramatiq(url: str, queue: str, body: bytes, count: int, *, work: bool, filled: bool) -> float:
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=url, confirm_delivery=True, middleware=[])
    counter = _Counter(count)

    @dramatiq.actor(broker=broker, queue_name=f"{queue}-dramatiq")
    def receive(text: str) -> None:
        counter()

    text = body.decode()
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
    try:
        if work and not filled:
            worker.start()
        began = time.perf_counter()
        for _ in range(count):
            receive.send(text)
        if not work:
            return time.perf_counter() - began
        if filled:
            began = time.perf_counter()
            worker.start()
        assert counter.done.wait(_PATIENCE)
        return time.perf_counter() - began
    finally:
        if work:
            worker.stop()
        for suffix in ("", ".DQ", ".XQ"):
            broker.channel.queue_delete(f"{queue}-dramatiq{suffix}")
        broker.close()


def dramatiq_publish(url: str, queue: str, body: bytes, count: int) -> float:
    return _dramatiq(url, queue, body, count, work=False, filled=False)


def dramatiq_consume(url: str, queue: str, body: bytes, count: int) -> float:
    return _dramatiq(url, queue, body, count, work=True, filled=True)


def dramatiq_end_to_end(url: str, queue: str, body: bytes, count: int) -> float:
    return _dramatiq(url, queue, body, count, work=True, filled=False)
