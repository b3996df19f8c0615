"""The server: what all its clients share, its upkeep, and its start and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from typing import Any, Final

from remuda.amqp.codec.frames import add_content, method_frame
from remuda.amqp.codec.methods import BasicDeliver, ConnectionStartOk
from remuda.amqp.codec.tables import Table
from remuda.broker.port import AsyncBroker
from remuda.model.errors import BrokerClosed, NotFound, RemudaError
from remuda.model.operations.results import QueueInfo
from remuda.server.amqp.client_socket import ClientSocket
from remuda.server.amqp.declarations.policies import Policy
from remuda.server.amqp.declarations.topology import Topology
from remuda.server.amqp.error_log import ErrorLog
from remuda.server.amqp.messages.commit_group import CommitGroup
from remuda.server.amqp.messages.consumers import AmqpConsumer
from remuda.server.amqp.messages.deadletters import DeadLetters
from remuda.server.amqp.messages.inbound import Inbound
from remuda.server.amqp.messages.inflow import Inflow
from remuda.server.amqp.messages.streams import StreamWatch
from remuda.server.amqp.protocol.channels import Channel
from remuda.server.amqp.protocol.connection import Limits
from remuda.server.amqp.protocol.failures import ACCESS_REFUSED, PRECONDITION_FAILED, Failure
from remuda.server.amqp.protocol.login import EXTERNAL, credentials
from remuda.server.amqp.protocol.vhosts import REPLY_TO, VHost
from remuda.server.amqp.session import ClientSession, new_token
from remuda.server.shovels.shovels import Shovels
from remuda.server.users import User, Users
from remuda.server.watched_files import INTERVAL

_ROUND: Final = 1.0
_DROPPING: Final = 5
"""In every fifth round, dead messages that nobody wants are dropped."""
_CLOSING: Final = 5.0
_READ: Final = 1 << 18


class AmqpServer:
    """An AMQP 0-9-1 server on a broker."""

    def __init__(
        self,
        broker: AsyncBroker,
        *,
        users: Users | None = None,
        vhosts: tuple[str, ...] = ("/",),
        limits: Limits | None = None,
        shovels: Path | None = None,
    ) -> None:
        self.broker = broker
        self.users = users
        self.limits = limits or Limits()
        known = (*vhosts, *(users.vhosts if users is not None else ()))
        self.topology = Topology(broker, known, self.limits.consumer_seconds)
        self.dead_letters = DeadLetters(self)
        self.shovels = Shovels(self, shovels)
        self.intake = Inflow(self.limits.memory_bytes)
        self.gathering = CommitGroup()
        self.mistakes = ErrorLog()
        self.streams = StreamWatch(self.topology, self.mistakes)
        self.inbound = Inbound()
        self.replies: dict[str, tuple[ClientSession, Channel]] = {}
        """Channels that wait for direct replies, by their token."""
        self.clients: set[ClientSocket] = set()
        self.ports: list[tuple[str, str, int]] = []
        """What is listened for: protocol, host and port."""
        self.churn: Counter[str] = Counter()
        """How many connections, channels, queues, messages and logins came and went."""
        self.scratch = memoryview(bytearray(_READ))
        """The buffer that all sockets are read into, one after the other: a new one per read costs more than most
        reads."""
        self._servers: list[asyncio.Server] = []
        self._consumers: dict[str, set[AmqpConsumer]] = {}
        self._last_used: dict[str, float] = {}
        self._numbers = 0
        self._upkeep: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._logins = asyncio.Semaphore(2)

    # Start and end

    async def start(self) -> None:
        """Read what was declared before. Call `listen` after it."""
        await self.topology.load()
        await self.shovels.start()
        for full in self.topology.queues:
            self.dead_letters.follow(full)
        self._upkeep = [asyncio.create_task(self._keep_up())]
        if self.users is not None:
            self._upkeep.append(asyncio.create_task(self._follow_users(self.users)))

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept clients; returns the port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: ClientSocket(self), host, port, ssl=tls, backlog=1024, reuse_address=True,
            ssl_handshake_timeout=None if tls is None else self.limits.login_seconds,
        )  # fmt: skip
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        self.ports.append(("amqp" if tls is None else "amqp/ssl", host, found))
        return found

    async def close(self, reason: str = "broker forced connection closure with reason 'shutdown'") -> None:
        """Disconnect every client, requeue what they held, and end."""
        for server in self._servers:
            server.close()
        await self.shovels.close()
        for client in list(self.clients):
            client.shut_down(reason)
        deadline = time.monotonic() + _CLOSING
        while self.clients and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for client in list(self.clients):
            client.abort()
        while self._closing:
            await asyncio.wait(list(self._closing))
        for task in self._upkeep:
            task.cancel()
        if self._upkeep:
            await asyncio.wait(self._upkeep)
        await self.streams.close()
        await self.dead_letters.close()

    @property
    def name(self) -> str:
        return f"remuda@{socket.gethostname()}"

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def properties(self) -> Table:
        from remuda import __version__

        return {
            "capabilities": {
                "publisher_confirms": True, "exchange_exchange_bindings": True, "basic.nack": True,
                "consumer_cancel_notify": True, "connection.blocked": True, "consumer_priorities": True,
                "authentication_failure_close": True, "per_consumer_qos": True, "direct_reply_to": True,
            },
            "cluster_name": self.name, "product": self.limits.product,
            "version": self.limits.product_version, "platform": f"Remuda {__version__} on {os.uname().sysname}",
            "information": "AMQP 0-9-1 on an embedded broker with an event log",
        }  # fmt: skip

    def admits_by_certificate(self, name: str) -> bool:
        """Whether a certificate's name is a user's. Some clients choose EXTERNAL wherever they are offered it, so it is
        not offered to others, who have a certificate beside their password."""
        return self.users is None or self.users.find(name) is not None

    async def log_in(self, method: ConnectionStartOk, certificate_name: str | None) -> User | None:
        """The user that logs in; None if the name or the password is wrong, or if there is no certificate."""
        if method.mechanism == EXTERNAL:
            if certificate_name is None:
                return None
            return User(certificate_name, everywhere=True) if self.users is None else self.users.find(certificate_name)
        found = credentials(method.mechanism, method.response)
        if found is None:
            return None
        name, password = found
        if self.users is None:
            return User(name, everywhere=True)
        async with self._logins:  # checking a password keeps a core busy: leave some for other work
            return await asyncio.to_thread(self.users.check, name, password)

    def closing(self, work: asyncio.Task[None]) -> None:
        self._closing.add(work)
        work.add_done_callback(self._closing.discard)

    # Queues and their consumers

    async def set_policies(self, vhost: VHost, policies: dict[str, Policy]) -> None:
        """Replace the policies of a vhost: they count for the queues that exist, too."""
        for full in await self.topology.set_policies(vhost, policies):
            self.dead_letters.follow(full)

    async def _forget_dead(self) -> None:
        """Drop what died in queues that do not keep it."""
        dropping = {full for full, one in self.topology.queues.items() if one.drops_dead or self.limits.drop_dead}
        if not dropping:
            return
        for info in await self.broker.queues():
            declaration = self.topology.queues.get(info.name)
            if info.dead and info.name in dropping and declaration is not None and declaration.drops_dead is not False:
                with contextlib.suppress(NotFound):  # it was deleted meanwhile
                    await self.broker.forget(info.name, who="as the queue's declaration says")

    async def drop_queue(self, full: str) -> None:
        self.churn["queue_deleted"] += 1
        self.dead_letters.forget(full)
        self._last_used.pop(full, None)
        with contextlib.suppress(BrokerClosed):
            await self.topology.delete_queue(full)

    def used(self, full: str) -> None:
        """A queue was used, so it does not expire yet."""
        declaration = self.topology.merged(full)
        if declaration is not None and declaration.expires is not None:
            self._last_used[full] = time.monotonic()

    def consumer_name(self, session: ClientSession, channel: int, tag: str) -> str:
        """The broker's name for a consumer: unique and readable."""
        shown = "".join(sign if sign.isprintable() and sign != "," else "?" for sign in tag)
        name = f"amqp-{os.getpid()}-{session.number}-{channel}-{shown}"
        return name if len(name.encode()) <= 200 else f"{name.encode()[:150].decode(errors='ignore')}-{new_token()}"

    def claim(self, consumer: AmqpConsumer, name: str, vhost: str, info: QueueInfo) -> None:
        """Refuse a consumer if another one has the queue to itself, or if it wants that and cannot have it."""
        others = self._consumers.get(consumer.queue, set())
        alone = info.consumers or info.options.single_active_consumer
        if any(other.exclusive for other in others) or (consumer.exclusive and alone):
            raise Failure(ACCESS_REFUSED, f"queue '{name}' in vhost '{vhost}' in exclusive use")

    def consumer_count(self, info: QueueInfo) -> int:
        """How many consumers a queue has. Those of a stream are known only here."""
        streams = [one for one in self._consumers.get(info.name, ()) if one.subscription is None]
        return max(len(info.consumers), len(streams))

    def joined(self, consumer: AmqpConsumer) -> None:
        self._consumers.setdefault(consumer.queue, set()).add(consumer)

    def left(self, consumer: AmqpConsumer) -> None:
        others = self._consumers.get(consumer.queue)
        if others is not None:
            others.discard(consumer)
            if not others:
                del self._consumers[consumer.queue]
        self.used(consumer.queue)

    # Direct replies

    def await_replies(self, session: ClientSession, channel: Channel) -> str:
        token = new_token()
        self.replies[token] = (session, channel)
        return token

    def has_reply(self, name: str) -> bool:
        return name.removeprefix(f"{REPLY_TO}.") in self.replies

    def reply(self, key: str, properties: bytes, body: bytes) -> bool:
        """Hand a reply to the channel that waits for it; False if none does."""
        found = self.replies.get(key.removeprefix(f"{REPLY_TO}."))
        if found is None:
            return False
        session, channel = found
        tag = channel.unanswered.skip(1)
        frame = method_frame(channel.number, BasicDeliver(channel.reply_consumer or "", tag, False, "", key))
        frames: list[bytes] = []
        add_content(frames, frame, channel.number, properties, body, session.protocol.frame_max)
        session.write(frames)
        session.flush_socket()
        return True

    # Time

    async def _keep_up(self) -> None:
        for number in count(1):
            await asyncio.sleep(_ROUND)
            self.intake.review()
            now = time.monotonic()
            try:
                if number % _DROPPING == 0:
                    await self._spared("dropping dead messages", self._forget_dead())
                for client in list(self.clients):
                    await self._spared("looking after a client", self._look_after(client, now))
                await self._spared("expiring queues", self._expire_queues(now))
                await self._spared("dropping exchanges", self.topology.drop_unused())
            except BrokerClosed:
                return
            self._forget_removed()

    async def _spared(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Do a piece of upkeep. An error in it costs no other."""
        try:
            await work
        except BrokerClosed:
            raise
        except Exception as error:
            self.mistakes.report("the server", what, error)

    async def _follow_users(self, users: Users) -> None:
        """Have changes of the users count for open connections, too."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await asyncio.to_thread(users.refresh)
                await self.apply_users(users)
            except BrokerClosed:
                return
            except Exception as error:
                self.mistakes.report("the server", "following the users", error)

    async def apply_users(self, users: Users) -> None:
        """Create the vhosts that users may enter, and close the connections of those who must leave theirs."""
        for name in users.vhosts:
            if name not in self.topology.vhosts:
                await self.topology.add_vhost(name)
        for client in list(self.clients):
            session = client.session
            if not session.user.name or session.user.everywhere:
                continue
            user = users.find(session.user.name)
            if user is None:
                client.shut_down(f"broker forced connection closure: user '{session.user.name}' is deleted")
            elif session.entered and not user.enters(session.vhost.name):
                text = f"user '{user.name}' may no longer enter vhost '{session.vhost.name}'"
                client.shut_down(f"broker forced connection closure: {text}")
            elif user is not session.user:
                session.user = user
                session.forget_granted()

    async def _look_after(self, client: ClientSocket, now: float) -> None:
        """Close channels whose consumers take too long to answer; renew the leases of those that need it."""
        session = client.session
        for channel in list(session.channels.values()):
            oldest = next(channel.unanswered.held(), None)
            if oldest is None:
                continue
            timeout = oldest.consumer.timeout if oldest.consumer is not None else self.limits.consumer_seconds
            if now - oldest.since > timeout:
                text = (
                    f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                    f"{round(timeout * 1000)} ms. This timeout value can be configured, see consumers doc guide "
                    "to learn more"
                )
                await session.fail(channel.number, Failure(PRECONDITION_FAILED, text), None)
                continue
            for handed in list(channel.unanswered.held()):
                if handed.consumer is not None and handed.consumer.renews:
                    with contextlib.suppress(RemudaError):
                        await self.broker.renew(handed.delivery)

    async def _expire_queues(self, now: float) -> None:
        for full in list(self.topology.queues):
            declaration = self.topology.merged(full)
            if declaration is None or declaration.expires is None:
                continue
            if full in self._consumers:
                self._last_used[full] = now
                continue
            since = self._last_used.setdefault(full, now)
            if now - since >= declaration.expires / 1000:
                info = await self.topology.find(full)
                if info is not None and not info.consumers:
                    await self.drop_queue(full)

    def _forget_removed(self) -> None:
        for full in [full for full in self._last_used if full not in self.topology.queues]:
            del self._last_used[full]
