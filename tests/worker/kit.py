"""Queues, messages and workers for the tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.connection import Connection
from remuda.amqp.codec.properties import Properties, encode_properties
from remuda.worker import QueueType, Task, TaskMessage, Worker, WorkerConfig, WorkerFactory
from remuda.worker.factory import Answer
from remuda.worker.tasks import encode_task, parse_task

_NUMBERS = itertools.count(1)


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


class Stage:
    """Queues of their own for one test, and a channel to look at them."""

    def __init__(self, url: str, channel: Channel, kind: QueueType) -> None:
        self.url = url
        self.channel = channel
        self.kind = kind
        name = f"test{next(_NUMBERS)}-{time.time_ns()}"
        self.input, self.output, self.rejected = f"{name}-in", f"{name}-out", f"{name}-rejected"
        self.retry = self.input

    def config(self, **changes: Any) -> WorkerConfig:
        values: dict[str, Any] = {
            "url": self.url, "input_queue": self.input, "output_queue": self.output, "queue_type": self.kind,
            "retry_limit": 2, "return_delay": 0.05, **changes,
        }  # fmt: skip
        return WorkerConfig(**values)

    @contextmanager
    def worker(self, factory: WorkerFactory | Callable[[Task], Answer], **changes: Any) -> Iterator[Worker]:
        worker = Worker(self.config(**changes), factory)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop(20.0)

    def declare(self, *names: str) -> None:
        for name in names or (self.input, self.output):
            self.channel.declare_queue(name, arguments={"x-queue-type": str(self.kind)})

    def send(self, task_id: str = "t1", data: bytes = b"", *, queue: str = "", **properties: Any) -> None:
        body = encode_task(TaskMessage(task_id=task_id, task_classifier="Test", task_data=data))
        self.send_raw(body, queue=queue, **properties)

    def send_raw(self, body: bytes, *, queue: str = "", **properties: Any) -> None:
        raw = encode_properties(Properties(**{"delivery_mode": 2, **properties}))
        self.channel.publish("", queue or self.input, body, raw, mandatory=True).wait(60)

    def take(self, queue: str = "", seconds: float = 60.0) -> Delivery:
        """The next message of a queue, by default of the output."""
        delivery: Delivery = until(lambda: self.channel.get(queue or self.output), seconds)
        self.channel.ack([delivery])
        return delivery

    def result(self, seconds: float = 60.0) -> TaskMessage:
        return parse_task(self.take(seconds=seconds).body)

    def count(self, queue: str) -> int:
        return self.channel.declare_queue(queue, passive=True).message_count

    def crash_consumer(self) -> Delivery:
        """Take a message as a worker would, and die without an answer: it is redelivered."""
        with Connection(self.url) as connection:
            consumer = connection.channel(prefetch=1).consume(self.input)
            return consumer.get(1, 60)[0]

    def crash_all(self, count: int) -> None:
        """The same with many messages at once."""
        with Connection(self.url) as connection:
            consumer = connection.channel(prefetch=count).consume(self.input)
            seen = 0
            while seen < count:
                seen += len(consumer.get(count, 60))
