"""Sockets, timers and limits around sessions. A client that misbehaves loses only its own connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
from collections import Counter, deque
from itertools import count
from pathlib import Path
from typing import Final

from remuda.amqp.codec.frames import Event, add_content, method_frame
from remuda.amqp.codec.methods import BasicDeliver, ConnectionOpen, ConnectionStartOk
from remuda.amqp.codec.tables import Table
from remuda.broker.port import AsyncBroker
from remuda.model.errors import BrokerClosed, RemudaError
from remuda.model.operations.results import QueueInfo
from remuda.server.addresses import shown_address
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
from remuda.server.amqp.protocol.connection import Limits, ServerConnection, Stage
from remuda.server.amqp.protocol.failures import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    PRECONDITION_FAILED,
    Failure,
)
from remuda.server.amqp.protocol.login import EXTERNAL, MECHANISMS, common_name, credentials, login_name
from remuda.server.amqp.protocol.vhosts import REPLY_TO, VHost
from remuda.server.amqp.session import ClientSession, new_token
from remuda.server.shovels.shovels import Shovels
from remuda.server.users import User, Users
from remuda.server.watched_files import INTERVAL

_log = logging.getLogger("remuda.amqp")
_ROUND: Final = 1.0
_DROPPING: Final = 5
"""In every fifth round, dead messages that nobody wants are dropped."""
_CLOSING: Final = 5.0
_LINGERING: Final = 30.0
"""Seconds that a client has to end the connection after its close was confirmed."""
_HIGH_WATER: Final = 1 << 20
_LAST: Final = 30.0
_AT_ONCE: Final = 64
_GATHERED: Final = 256
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
            try:
                if number % _DROPPING == 0:
                    await self._forget_dead()
                self.intake.review()
                now = time.monotonic()
                for client in list(self.clients):
                    await self._look_after(client, now)
                await self._expire_queues(now)
                await self.topology.drop_unused()
                self._forget_removed()
            except asyncio.CancelledError:
                raise
            except BrokerClosed:
                return
            except Exception as error:
                self.mistakes.report("the server", "periodic upkeep", error)

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


class ClientSocket(asyncio.BufferedProtocol):
    """One client's socket. Buffers are handled one after the other; while too much waits, it is not read."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self.protocol = ServerConnection(server.limits, server.properties())
        self.session = ClientSession(server, self.protocol, self, server.next_number())
        self.peer = self.name = "nowhere"
        """The client's address, and with the server's own what RabbitMQ calls the connection."""
        self.remote: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.connected_at = 0
        """Milliseconds since 1970."""
        self.encrypted = False
        self.certificate_name: str | None = None
        self.mechanism = ""
        self.received = self.sent = self.received_count = self.sent_count = 0
        self._transport: asyncio.Transport | None = None
        self._backlog: deque[list[Event]] = deque()
        self._backlog_bytes = 0
        self._arrived = asyncio.Event()
        self._out: list[bytes] = []
        self._flushing = False
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._paused = False
        self._parting = False
        self._over = False

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.remote, self.local = (_address(transport, which) for which in ("peername", "sockname"))
        self.peer = shown_address(self.remote)
        self.name = f"{self.peer} -> {shown_address(self.local)}"
        self.connected_at = round(time.time() * 1000)
        self.encrypted = transport.get_extra_info("ssl_object") is not None
        self.certificate_name = common_name(transport.get_extra_info("peercert"))
        if self.certificate_name is not None and self._server.admits_by_certificate(self.certificate_name):
            self.protocol.mechanisms = MECHANISMS + b" EXTERNAL"
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        if len(self._server.clients) >= self._server.limits.connection_max:
            _log.warning("a connection was refused: there are %d already", len(self._server.clients))
            transport.abort()
            return
        self._server.clients.add(self)
        self._server.churn["connection_created"] += 1
        self._heard = time.monotonic()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._server.limits.login_seconds, self._too_late)
        self._worker = loop.create_task(self._work())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = time.monotonic()
        self.received += nbytes
        self.received_count += 1
        events = self.protocol.receive(bytes(self._server.scratch[:nbytes]))
        if events:
            self._backlog.append(events)
            self._backlog_bytes += nbytes
            self._arrived.set()
        if self.protocol.out or self.protocol.stage is not Stage.RUNNING:
            self.flush()
        self._regulate()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.session.writable.clear()

    def resume_writing(self) -> None:
        self.session.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self in self._server.clients:
            self._server.churn["connection_closed"] += 1
            self._release().add_done_callback(lambda _: self._server.clients.discard(self))

    # From the session

    def write(self, frames: list[bytes], *, now: bool = False) -> None:
        """Send frames at once, or together with what else is written in this turn of the loop."""
        self._out += frames
        if now or len(frames) > _AT_ONCE:
            # Many go out at once, so that their sender learns early if the client does not read.
            self.flush()
        elif not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        transport = self._transport
        own = self.protocol.output() if self.protocol.out else []
        if self._over:
            self._out.clear()  # nothing may follow a close
        if transport is None or transport.is_closing() or self._parting:
            return
        out, self._out = self._out, []
        # The session's answers come before a close of the connection.
        out += own
        if out:
            data = b"".join(out)
            self.sent += len(data)
            self.sent_count += 1
            transport.write(data)
        if self.protocol.stage is Stage.CLOSED:
            self._part(transport)
        elif self.protocol.stage is Stage.CLOSING and not self._over:
            self._abort_after(_CLOSING)
            self._release()

    def _part(self, transport: asyncio.Transport) -> None:
        """End the connection in such a way that the client can still read the last frames.

        It may still be sending, and closing a socket that has unread data resets the connection: what is on its way to
        the client would be lost. So whatever it sends is ignored until it hangs up.
        """
        protocol = self.protocol
        if protocol.answered:
            transport.close()
        elif not self._parting:
            self._parting = True
            if not protocol.parted and transport.can_write_eof():
                transport.write_eof()
            self._abort_after(_LINGERING if protocol.parted else _CLOSING)
            self._regulate()
            self._release()

    @property
    def state(self) -> str:
        """How the connection does, in RabbitMQ's words."""
        if self.protocol.stage is not Stage.RUNNING:
            return "closing"
        if self._paused:
            return "blocked" if self._server.intake.blocked else "flow"
        return "running"

    def resume(self) -> None:
        if self._paused:
            self._regulate()

    def shut_down(self, reason: str) -> None:
        self.protocol.fail(Failure(CONNECTION_FORCED, reason))
        self.flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Inside

    def _regulate(self) -> None:
        """Pause or resume reading, depending on how much waits to be handled."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        waits = self._backlog_bytes + self.session.in_flight + self.protocol.held // 8
        stop = waits > self._server.limits.backlog_bytes or (self.session.publishes and self._server.intake.blocked)
        stop = stop and not self._parting
        if stop and not self._paused:
            self._paused = True
            transport.pause_reading()
        elif not stop and self._paused:
            self._paused = False
            transport.resume_reading()
            self._heard = time.monotonic()

    async def _work(self) -> None:
        session = self.session
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                if self.session.publishes:
                    await asyncio.sleep(0)  # what else has arrived goes to the broker with this
                while self._backlog:
                    events = self._backlog.popleft()
                    if len(events) < _GATHERED:
                        while self._backlog:
                            events += self._backlog.popleft()
                    if type(events[0][1]) in (ConnectionStartOk, ConnectionOpen):
                        await self._open(events)
                    else:
                        await session.handle(events)
                self._backlog_bytes = 0
                self.resume()
                if self._over:
                    return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._server.mistakes.report(session.who, "its connection", error)
            self.protocol.fail(Failure(INTERNAL_ERROR, type(error).__name__))
            self.flush()

    async def _open(self, events: list[Event]) -> None:
        method = events[0][1]
        if isinstance(method, ConnectionStartOk):
            user = await self._server.log_in(method, self.certificate_name)
            self._server.churn["login_failed" if user is None else "login"] += 1
            if user is None:
                text = (
                    f"Login was refused using authentication mechanism {method.mechanism}. "
                    "For details see the broker logfile."
                )
                _log.warning("login refused: user %r from %s, by %s", login_name(method), self.peer, method.mechanism)
                self.protocol.refuse(Failure(ACCESS_REFUSED, text, hard=True))
            else:
                self.session.user = user
                self.mechanism = method.mechanism
                self.protocol.accept()
            self.flush()
            return
        await self.session.handle(events)
        if self.protocol.stage is Stage.RUNNING:
            if self._timer is not None:
                self._timer.cancel()
            if self.protocol.heartbeat:
                self._beat()

    def _beat(self) -> None:
        """Send a heartbeat every half interval; a client that is silent for two intervals is gone."""
        if self._over:
            return
        pause = self.protocol.heartbeat
        if not self._paused and time.monotonic() - self._heard > 2 * pause + 1:
            _log.warning("%s: nothing was received for %d s", self.session.who, 2 * pause)
            self.abort()
            return
        self.protocol.beat()
        self.flush()
        if not self._over:
            self._timer = asyncio.get_running_loop().call_later(pause / 2, self._beat)

    def _too_late(self) -> None:
        _log.warning("%s did not open in time", self.session.who)
        self.abort()

    def _abort_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _release(self) -> asyncio.Task[None]:
        """End the session and requeue what the client held, even if its socket stays open for a while."""
        self._over = True
        self.session.writable.set()
        self._arrived.set()
        if self._cleaning is None:
            self._cleaning = asyncio.get_running_loop().create_task(self._clean_up())
            self._server.closing(self._cleaning)
        return self._cleaning

    async def _clean_up(self) -> None:
        if self._worker is not None:
            # What was received before the connection broke still counts.
            await asyncio.wait([self._worker], timeout=_LAST)
            self._worker.cancel()
            await asyncio.wait([self._worker])
        self._server.intake.forget(self.session)
        try:
            await self.session.close()
        except BrokerClosed:
            pass
        except Exception as error:
            self._server.mistakes.report(self.session.who, "its cleaning up", error)


def _address(transport: asyncio.BaseTransport, which: str) -> tuple[str, int]:
    found = transport.get_extra_info(which)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) and len(found) >= 2 else ("", 0)
