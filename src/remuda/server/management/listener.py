"""`remuda serve --management`: the management API as one more listener beside AMQP and the wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from remuda.broker.port import Broker
from remuda.server.addresses import Listen
from remuda.server.certificates import Certificates
from remuda.server.http.serving import Server
from remuda.server.management.app import ManagementApp
from remuda.server.management.views import Views
from remuda.server.serving import AmqpListener, check_safe
from remuda.server.users import Users

PORT: Final = 15672
_LOOK: Final = 5.0


class ManagementListener:
    """The management API of the AMQP server that is opened before it."""

    def __init__(
        self, amqp: AmqpListener, where: Listen, *, users: Users | None = None, tls: Certificates | None = None
    ) -> None:
        check_safe(where.host, users)
        self._amqp = amqp
        self._where = where
        self._tls = tls
        self._server: Server | None = None
        self._looking: asyncio.Task[None] | None = None

    async def open(self, broker: Broker) -> str:
        served = self._amqp.server
        views = Views(served)
        views.ports = list(served.ports)
        views.certificates = self._tls
        app = ManagementApp(served, views, asyncio.get_running_loop())
        server = await asyncio.to_thread(self._start, app)
        self._server = server
        protocol = "https" if self._tls else "http"
        views.ports.append((protocol, self._where.host, int(server.address.rstrip("/").rpartition(":")[2])))
        self._looking = asyncio.create_task(_look(views))
        return f"{server.address}api/"

    def _start(self, app: Callable[..., object]) -> Server:
        server = Server(app, self._where, tls=self._tls, option="--management")
        server.start()
        return server

    async def reload(self) -> None:
        """It has nothing of its own that could be read again."""

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)


async def _look(views: Views) -> None:
    """Count what happens now and then, so that a rate is known when it is asked for."""
    while True:
        with contextlib.suppress(Exception):
            await views.infos()
        await asyncio.sleep(_LOOK)
