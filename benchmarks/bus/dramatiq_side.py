"""dramatiq: a worker on its StubBroker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import AsyncIO

from benchmarks.bus import work
from benchmarks.bus.side import Setup, Unfit


class DramatiqSide:
    def __init__(self, setup: Setup) -> None:
        if setup.executor == "processes":
            raise Unfit("StubBroker lives in one process, and its other brokers are servers")
        broker = StubBroker()
        handler: Callable[[str], Any] = work.handle
        if setup.executor == "asyncio":
            broker.add_middleware(AsyncIO())
            handler = work.handle_async
        dramatiq.set_broker(broker)
        self._actor = dramatiq.actor(handler)
        dramatiq.Worker(broker, worker_threads=setup.workers).start()
        coroutines = ", coroutines by its AsyncIO middleware" if setup.executor == "asyncio" else ""
        self.description = (
            f"{setup.workers} worker threads{coroutines}; StubBroker: not durable, nothing outlives the process; "
            "acknowledged after the handler; its default middleware; no batches"
        )

    def publish(self, body: str) -> None:
        self._actor.send(body)

    def publish_many(self, bodies: list[str]) -> None:
        for body in bodies:
            self._actor.send(body)
