"""An AMQP server of ours in this process, on an event loop of its own, over a broker in memory or a directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.protocol.connection import Limits
from remuda.server.users import Users

T = TypeVar("T")


class RunningServer:
    """Listens on a free port of loopback until it is closed."""

    def __init__(
        self, url: str = "memory://", *, limits: Limits | None = None, users: Users | None = None,
        vhosts: tuple[str, ...] = ("/",), tls: Any = None, broker: EmbeddedBroker | None = None,
        shovels: Path | None = None,
    ) -> None:  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="amqp server", daemon=True)
        self._thread.start()
        self._owns = broker is None
        self.broker = broker or open_broker(url)
        self.server: AmqpServer = self.run(self._start(users, vhosts, limits, tls, shovels))

    async def _start(
        self, users: Users | None, vhosts: tuple[str, ...], limits: Limits | None, tls: Any, shovels: Path | None
    ) -> AmqpServer:
        server = AmqpServer(self.broker.aio, users=users, vhosts=vhosts, limits=limits, shovels=shovels)
        await server.start()
        self.port = await server.listen("127.0.0.1", 0, tls)
        return server

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout)

    def close(self) -> None:
        self.run(self.server.close())
        if self._owns:
            self.broker.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
