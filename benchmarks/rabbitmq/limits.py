"""What RabbitMQ carries at most, for the cheapest client that can be imagined: what it sends was made before, and what
it gets is counted and acknowledged, no more."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.rabbitmq.bus_sides import opened_bus, publish_all
from benchmarks.rabbitmq.jobs import WINDOW, Job
from benchmarks.rabbitmq.sides import fill, outgoing
from benchmarks.raw_amqp import Confirmed, RawClient
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.client.delivery_parser import Deliveries
from remuda.amqp.codec.frames import add_content, method_frame
from remuda.amqp.codec.methods import (
    BasicAck,
    BasicConsume,
    BasicDeliver,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
)
from remuda.broker.rabbitmq.publishing import codec
from remuda.broker.rabbitmq.shared_state.rabbit_topology import CHANNELS
from remuda.model.messages import Messages


def _publish(job: Job, make: Callable[[int], Outgoing]) -> None:
    client = RawClient(job.url)
    client.ask(ConfirmSelect(), ConfirmSelectOk)
    ready: list[tuple[int, bytes]] = []
    for batch in job.batches:
        frames: list[bytes] = []
        for exchange, key, properties, body in map(make, batch):
            add_content(frames, method_frame(1, BasicPublish(0, exchange, key, True)), 1, properties, body)
        ready.append((len(batch), b"".join(frames)))
    sent, confirmed = 0, Confirmed()
    with job.measured():
        for count, data in [*ready, (WINDOW, b"")]:
            while sent - len(confirmed) + count > WINDOW:
                confirmed.add(client.read())
            client.sock.sendall(data)
            sent += count if data else 0
    client.close()


def _consume(job: Job) -> None:
    client = RawClient(job.url)
    client.ask(BasicQos(0, WINDOW), BasicQosOk)
    with job.measured():
        client.sock.sendall(method_frame(1, BasicConsume(0, job.queue, "c")))
        seen = 0
        while seen < job.count:
            last = 0
            for _, method, _, _ in client.read():
                if isinstance(method, Deliveries):
                    seen, last = seen + len(method.tags), method.tags[-1]
                elif isinstance(method, BasicDeliver):
                    seen, last = seen + 1, method.delivery_tag
            if last:
                client.sock.sendall(method_frame(1, BasicAck(last, True)))
    client.close()


def publish_as_the_bus(job: Job) -> None:
    """The bytes that the bus would send."""
    now = time.time_ns() // 1000
    columns = Messages(bodies=[job.body] * job.count, name=job.queue, ids=range(1 << 60, (1 << 60) + job.count))
    encoded = codec.encode(columns, now)
    with opened_bus(job) as bus:
        _publish(job, lambda number: Outgoing(CHANNELS, job.queue, encoded[number], job.body))
        bus.broker.remove_queue(job.queue)


def consume_from_the_bus(job: Job) -> None:
    """What the bus published."""
    with opened_bus(job) as bus:
        publish_all(job, bus)
        _consume(job)
        bus.broker.remove_queue(job.queue)


def publish_bare(job: Job) -> None:
    """The bytes that the bare clients would send."""
    _publish(job, lambda number: outgoing(job, number))


def consume_bare(job: Job) -> None:
    fill(job)
    _consume(job)
