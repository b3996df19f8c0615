"""A guest of a shared directory passes the suite (S5), and so does a client over TCP (S6): each can do everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from remuda.broker.opening import open_async_broker, open_broker
from remuda.broker.port import AsyncBroker, Broker
from remuda.model.message import Message
from remuda.model.state import State
from remuda.server.wire import WireServer, serve_wire
from tests.conformance import delivery, queues, settling
from tests.conformance.kit import Backend, eventually, queue_names, quick_folder
from tests.conformance.suite import suite
from tests.conformance.threads_face import LoopThread, ThreadsFace


class Guests:
    """Guests of one directory. When all are closed their host ends too, and the next finds a new one."""

    durable = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._host: Broker | None = None
        self._opened: list[Any] = []

    def open(self, **options: Any) -> Broker:
        self._start_host(**options)
        broker = open_broker(self._path, sync="os", **options)
        assert broker.runtime.remote
        self._opened.append(broker)
        return broker

    async def open_async(self, **options: Any) -> AsyncBroker:
        self._start_host(**options)
        broker = await open_async_broker(self._path, sync="os", **options)
        assert broker.runtime.remote
        self._opened.append(broker)
        return broker

    def _start_host(self, **options: Any) -> None:
        if self._host is not None and not all(broker.runtime.closed for broker in self._opened):
            return
        if self._host is not None:
            self._host.close()
        self._host = open_broker(self._path, sync="os", **options)

    def close(self) -> None:
        for broker in self._opened:
            broker.runtime.close()
        if self._host is not None:
            self._host.close()


class AsyncGuests(Guests):
    """The same, spoken to through their asyncio face."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._loop = LoopThread()

    def open(self, **options: Any) -> Broker:
        return cast(Broker, ThreadsFace(self._loop.run(self.open_async(**options)), self._loop))

    def close(self) -> None:
        super().close()
        self._loop.close()


class Clients(Guests):
    """Clients of a server, each at the other end of a TCP connection."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._server: WireServer | None = None

    def open(self, **options: Any) -> Broker:
        self._start_host(**options)
        assert self._server is not None
        broker = open_broker(self._server.url)
        self._opened.append(broker)
        return broker

    async def open_async(self, **options: Any) -> AsyncBroker:
        await asyncio.to_thread(self._start_host, **options)
        assert self._server is not None
        broker = await open_async_broker(self._server.url)
        self._opened.append(broker)
        return broker

    def _start_host(self, **options: Any) -> None:
        before = self._host
        super()._start_host(**options)
        if self._host is not before:
            if self._server is not None:
                self._server.close()
            self._server = serve_wire(self._host, ("127.0.0.1", 0))

    def close(self) -> None:
        super().close()
        if self._server is not None:
            self._server.close()


BACKENDS: dict[str, Callable[[Path], Guests]] = {
    "guest": lambda path: Guests(path / "broker"),
    "tcp": lambda path: Clients(path / "broker"),
    "asyncio": lambda path: AsyncGuests(path / "broker"),
}
asynchronously = pytest.mark.parametrize("backend", ["asyncio"], indirect=True)
"""Themes in which the two faces differ at all."""


@pytest.fixture(params=["guest", "tcp"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with quick_folder() as folder:
        place = BACKENDS[request.param](folder)
        yield place
        place.close()


globals().update(suite(__name__))


class TestAutoDestroy(queues.AutoDestroy):
    def test_q10_a_closed_broker_keeps_queues_without_consumers(self, backend: Backend, broker: Broker) -> None:
        """Unlike a broker that ends, a guest that leaves is a consumer that leaves: its host goes on without it."""
        broker.create_queue("orders", auto_destroy="no-consumers")
        broker.subscribe("orders")
        other = backend.open()
        broker.close()
        eventually(lambda: queue_names(other) == [])


@asynchronously
class TestPullAsynchronously(delivery.Pull):
    pass


@asynchronously
class TestAnswersAsynchronously(settling.Answers):
    pass


@asynchronously
class TestCommitsAsynchronously(settling.Commits):
    pass


@asynchronously
class TestClosingAsynchronously(queues.Closing):
    pass


@pytest.mark.parametrize("acknowledge", ["just-request", "wait"])
def test_q2_a_guest_that_receives_nothing_uses_up_nothing(backend: Backend, acknowledge: str) -> None:
    with backend.open() as broker:
        broker.create_queue("orders", acknowledge=acknowledge, acknowledge_timeout="100ms", put_back="no")
        with broker.subscribe("orders") as idle:
            broker.publish(Message("orders", b"0"))
            eventually(lambda: broker.queue("orders").counts[State.QUEUED] > 3)  # it goes there again and again
            delivery = idle.receive("30s")
            assert delivery is not None
            assert delivery.attempts == [1]
            assert broker.queue("orders").dead == 0
            eventually(lambda: broker.queue("orders").dead == 1)  # now it was handed over, and is not answered
