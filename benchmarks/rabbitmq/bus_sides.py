"""The same work through whole libraries: a bus, actors, subscribers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.rabbitmq.jobs import BATCH, EXCHANGE, MIME_TYPE, PATIENCE, WINDOW, Job, message_id
from benchmarks.rabbitmq.sides import fill
from remuda import Bus


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


def _ignore(body: bytes) -> None: ...


def opened_bus(
    job: Job, handle: Callable[..., None] = _ignore, *, logged: bool = False, batch: int | None = None
) -> Bus:
    """As it is by default, on quorum queues; but without the event log, which the others do not keep, unless it is to
    be `logged`."""
    bus = Bus(f"{job.url}{'' if logged else '?log=no'}")
    bus.subscribe(job.queue, queue=job.queue, batch=batch)(handle)
    assert bus.broker
    return bus


def publish_all(job: Job, bus: Bus) -> None:
    """In batches, of which as many are on their way as the window holds."""
    batches = iter(job.batches)

    async def one_after_another() -> None:
        for batch in batches:
            await bus.publish_many_async(job.queue, [job.body] * len(batch))

    async def main() -> None:
        await asyncio.gather(*(one_after_another() for _ in range(WINDOW // BATCH)))

    asyncio.run(main())


def remuda_publish(job: Job, *, logged: bool = False) -> None:
    with opened_bus(job, logged=logged) as bus:
        with job.measured():
            publish_all(job, bus)
        bus.broker.remove_queue(job.queue)


def remuda_consume(job: Job, *, logged: bool = False, batch: int | None = None) -> None:
    counter = _Counter(job.count)

    def handle(body: bytes) -> None:
        counter()

    def handle_many(bodies: list[bytes]) -> None:
        counter(len(bodies))

    with opened_bus(job, handle if batch is None else handle_many, logged=logged, batch=batch) as bus:
        publish_all(job, bus)
        with job.measured():
            bus.start()
            assert counter.done.wait(PATIENCE)
        bus.stop()
        bus.broker.remove_queue(job.queue)


def remuda_end_to_end(job: Job, *, logged: bool = False) -> None:
    counter = _Counter(job.count)

    def handle(body: bytes) -> None:
        counter()

    with opened_bus(job, handle, logged=logged) as bus:
        bus.start()
        with job.measured():
            publish_all(job, bus)
            assert counter.done.wait(PATIENCE)
        bus.stop()
        bus.broker.remove_queue(job.queue)


def _kombu_publish(job: Job, producer: Any) -> None:
    for number in range(job.count):
        producer.publish(
            job.body, exchange=EXCHANGE, routing_key=job.queue, delivery_mode=2, mandatory=True, content_type=MIME_TYPE,
            content_encoding="binary", message_id=message_id(number), type=job.queue, timestamp=int(time.time()),
        )  # fmt: skip


def kombu_publish(job: Job) -> None:
    kombu: Any = import_module("kombu")  # which has no types
    with kombu.Connection(job.url, transport_options={"confirm_publish": True}) as connection:
        producer = connection.Producer()
        with job.measured():
            _kombu_publish(job, producer)


def kombu_consume(job: Job) -> None:
    kombu: Any = import_module("kombu")  # which has no types
    fill(job)
    seen = 0

    def receive(content: Any, message: Any) -> None:
        nonlocal seen
        seen += 1
        message.ack()

    with kombu.Connection(job.url) as connection:
        source = kombu.Queue(job.queue, no_declare=True)
        with (
            job.measured(),
            connection.Consumer(source, callbacks=[receive], prefetch_count=WINDOW, accept=[MIME_TYPE]),
        ):
            while seen < job.count:
                connection.drain_events(timeout=PATIENCE)


def _faststream_publish(job: Job, broker: Any) -> Callable[[int], Any]:
    def one(number: int) -> Any:
        return broker.publish(
            job.body, exchange=EXCHANGE, routing_key=job.queue, persist=True, content_type=MIME_TYPE,
            message_id=message_id(number), message_type=job.queue, timestamp=int(time.time()),
        )  # fmt: skip

    return one


async def _in_windows(job: Job, publish: Callable[[int], Any]) -> None:
    for start in range(0, job.count, WINDOW):
        await asyncio.gather(*map(publish, range(start, min(start + WINDOW, job.count))))


def faststream_publish(job: Job) -> None:
    from faststream.rabbit import RabbitBroker

    async def main() -> None:
        async with RabbitBroker(job.url, logger=None) as broker:
            await broker.start()
            publish = _faststream_publish(job, broker)
            await publish(0)  # it looks for the exchange
            with job.measured():
                await _in_windows(job, publish)

    asyncio.run(main())


def _faststream(job: Job, *, filled: bool) -> None:
    from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

    async def main() -> None:
        broker = RabbitBroker(job.url, logger=None, default_channel=Channel(prefetch_count=WINDOW))
        seen, done = 0, asyncio.Event()

        @broker.subscriber(RabbitQueue(job.queue, declare=False))
        async def receive(message: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen >= job.count:
                done.set()

        async with broker:
            await broker.connect()
            if filled:
                fill(job)
            else:
                await broker.start()
            with job.measured():
                if filled:
                    await broker.start()
                else:
                    await _in_windows(job, _faststream_publish(job, broker))
                await asyncio.wait_for(done.wait(), PATIENCE)

    asyncio.run(main())


def faststream_consume(job: Job) -> None:
    _faststream(job, filled=True)


def faststream_end_to_end(job: Job) -> None:
    _faststream(job, filled=False)


def _dramatiq(job: Job, *, work: bool, filled: bool) -> None:
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=job.url, confirm_delivery=True, middleware=[])
    counter = _Counter(job.count)
    name = f"{job.queue}-dramatiq"

    @dramatiq.actor(broker=broker, queue_name=name)
    def receive(text: str) -> None:
        counter()

    text = job.body.decode()
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
    try:
        if work and not filled:
            worker.start()
        job.begin()
        for _ in range(job.count):
            receive.send(text)
        if filled:
            job.begin()
            worker.start()
        assert not work or counter.done.wait(PATIENCE)
        job.end()
    finally:
        if work:
            worker.stop()
        for suffix in ("", ".DQ", ".XQ"):
            broker.channel.queue_delete(name + suffix)
        broker.close()


def dramatiq_publish(job: Job) -> None:
    _dramatiq(job, work=False, filled=False)


def dramatiq_consume(job: Job) -> None:
    _dramatiq(job, work=True, filled=True)


def dramatiq_end_to_end(job: Job) -> None:
    _dramatiq(job, work=True, filled=False)
