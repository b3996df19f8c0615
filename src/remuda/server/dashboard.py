"""`remuda serve --dashboard`: the dashboard as one more listener beside AMQP and the wire."""

from __future__ import annotations

import asyncio

from remuda.broker.port import Broker
from remuda.bus.bus import Bus
from remuda.model.errors import RemudaError
from remuda.server.http.mounting import dashboard
from remuda.server.http.security.users import Users
from remuda.server.http.serving import DEFAULT, Server, check_safe, names_of, read_listen


class DashboardListener:
    """The dashboard and the HTTP API for the queues that `remuda serve` offers.

    If the default port is taken, it listens on any free one; an address that was chosen must be free."""

    def __init__(self, bus: Bus, where: str | None, *, users: str | None = None) -> None:
        self._bus = bus
        self._chosen = where is not None
        self._where = read_listen(where or DEFAULT, "--dashboard")
        self._users = None if users is None else Users.load(users)
        check_safe(self._where, self._users, "--dashboard-users")
        self._server: Server | None = None

    async def open(self, broker: Broker) -> str:
        self._server = await asyncio.to_thread(self._start)
        return self._server.address

    async def reload(self) -> None:
        """Its users are read again when their file changes."""

    async def close(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    def _start(self) -> Server:
        page = dashboard(self._bus, users=self._users, hosts=names_of(self._where, []))
        try:
            server = Server(page, self._where, option="--dashboard")
        except RemudaError:
            if self._chosen:
                raise
            server = Server(page, self._where._replace(port=0))
        server.start()
        return server
