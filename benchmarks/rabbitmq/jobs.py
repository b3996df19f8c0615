"""One side's work in one round, and what it took: getting ready is not counted, for nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from benchmarks.processes import cpu_seconds

WINDOW: Final = 1000
"""Unconfirmed publishes at most, and deliveries not acknowledged at most."""
BATCH: Final = 250
"""Messages that are published together, and acknowledgements that go out together, where a side can."""
EXCHANGE: Final = "amq.topic"
"""Through which the bare clients publish: a topic exchange, as the bus's own is."""
MIME_TYPE: Final = "application/octet-stream"
PATIENCE: Final = 120.0

_FIRST_ID: Final = 1_794_808_608_451_544_000


class Server(NamedTuple):
    """A running RabbitMQ."""

    url: str
    pid: int

    @property
    def cpu(self) -> float:
        """Seconds of CPU that it has used so far."""
        return cpu_seconds(self.pid)


class Job:
    """So many messages with one body to or from one queue."""

    def __init__(self, server: Server, queue: str, body: bytes, count: int) -> None:
        self.url = server.url
        self.queue = queue
        self.body = body
        self.count = count
        self.seconds = self.client_cpu = self.server_cpu = 0.0
        self._server = server
        self._began = (0.0, 0.0, 0.0)

    def begin(self) -> None:
        self._began = (time.perf_counter(), time.process_time(), self._server.cpu)

    def end(self) -> None:
        began, worked, served = self._began
        self.seconds = time.perf_counter() - began
        self.client_cpu = time.process_time() - worked
        self.server_cpu = self._server.cpu - served

    @contextmanager
    def measured(self) -> Iterator[None]:
        self.begin()
        yield
        self.end()

    @property
    def batches(self) -> list[range]:
        """The numbers of the messages, batch by batch."""
        return [range(at, min(at + BATCH, self.count)) for at in range(0, self.count, BATCH)]


Work = Callable[[Job], None]


def message_id(number: int) -> str:
    """Each message has one of its own, as long as those of the bus."""
    return str(_FIRST_ID + number)
