"""The embedded broker passes the suite: in memory and in a directory, from threads and from coroutines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from remuda.broker.opening import open_async_broker, open_broker
from remuda.broker.port import AsyncBroker, Broker
from tests.conformance.kit import Backend, quick_folder
from tests.conformance.suite import suite
from tests.conformance.threads_face import LoopThread, ThreadsFace


class Embedded:
    """Brokers at one URL."""

    def __init__(self, url: str) -> None:
        self.durable = not url.startswith("memory:")
        self._url = url
        self._opened: list[Broker] = []

    def open(self, **options: Any) -> Broker:
        broker: Broker = open_broker(self._url, sync="os", **options)
        self._opened.append(broker)
        return broker

    async def open_async(self, **options: Any) -> AsyncBroker:
        return await open_async_broker(self._url, sync="os", **options)

    def close(self) -> None:
        for broker in self._opened:
            broker.close()


class EmbeddedAsync(Embedded):
    """The same, spoken to through its asyncio face."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._loop = LoopThread()

    def open(self, **options: Any) -> Broker:
        broker = cast(Broker, ThreadsFace(self._loop.run(self.open_async(**options)), self._loop))
        self._opened.append(broker)
        return broker

    def close(self) -> None:
        super().close()
        self._loop.close()


BACKENDS: dict[str, Callable[[Path], Embedded]] = {
    "memory": lambda path: Embedded("memory://"),
    "directory": lambda path: Embedded(str(path / "broker")),
    "asyncio": lambda path: EmbeddedAsync(str(path / "broker")),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with quick_folder() as folder:
        place = BACKENDS[request.param](folder)
        yield place
        place.close()


globals().update(suite(__name__))
