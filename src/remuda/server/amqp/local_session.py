"""A session of the server's own, for requests that come another way than over AMQP: the same rules and permissions."""

from __future__ import annotations

import asyncio

from remuda.amqp.codec.methods import BasicPublish, ExchangeDelete, Method, QueueDelete
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.protocol.channels import Channel
from remuda.server.amqp.protocol.connection import ServerConnection
from remuda.server.amqp.protocol.request_reader import Publications
from remuda.server.amqp.protocol.vhosts import DEFAULT_EXCHANGE, VHost
from remuda.server.amqp.session import ClientSession
from remuda.server.users import User


class _NoSocket:
    """Where a connection would be written to: nobody listens."""

    peer = "management"

    def write(self, frames: list[bytes], *, now: bool = False) -> None:
        pass

    def flush(self) -> None:
        pass

    def resume(self) -> None:
        pass


class LocalSession:
    """One user in one vhost. Raises `Failure` as a channel would be closed."""

    def __init__(self, server: AmqpServer, user: User, vhost: VHost) -> None:
        self._session = ClientSession(server, ServerConnection(server.limits, {}), _NoSocket(), server.next_number())
        self._session.user = user
        self._session.vhost = vhost
        self._channel = self._session.channels[1] = Channel(1)

    async def ask(self, method: Method) -> Method | None:
        """Carry out a request; returns the answer."""
        return await self._session.ask(self._channel, method)

    async def delete(self, method: QueueDelete | ExchangeDelete) -> None:
        await self.ask(method)

    def check(self, access: str, kind: str, name: str) -> None:
        self._session.check(access, kind, name)

    async def publish(self, exchange: str, key: str, properties: bytes, body: bytes) -> bool:
        """Publish one message; returns whether a queue took it."""
        exchange = "" if exchange == DEFAULT_EXCHANGE else exchange
        self.check("write", "exchange", exchange or DEFAULT_EXCHANGE)
        method = BasicPublish(0, exchange, key, True)
        admitted = self._session.publisher.admitted(self._channel, properties)
        refused, returned = await self._session.publisher.publish(1, [Publications(method, admitted, [body])])
        await asyncio.sleep(0)
        return not returned and not list(refused)
