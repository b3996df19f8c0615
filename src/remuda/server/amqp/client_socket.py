"""One client's socket: reads into the session, writes what it answers, and ends so that the last words arrive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from remuda.amqp.codec.frames import Event
from remuda.amqp.codec.methods import ConnectionOpen, ConnectionStartOk
from remuda.model.errors import BrokerClosed
from remuda.server.addresses import shown_address
from remuda.server.amqp.protocol.connection import ServerConnection, Stage
from remuda.server.amqp.protocol.failures import ACCESS_REFUSED, CONNECTION_FORCED, INTERNAL_ERROR, Failure
from remuda.server.amqp.protocol.login import MECHANISMS, common_name, login_name
from remuda.server.amqp.session import ClientSession

if TYPE_CHECKING:
    from remuda.server.amqp.amqp_server import AmqpServer

_log = logging.getLogger("remuda.amqp")
_CLOSING: Final = 5.0
_LINGERING: Final = 30.0
"""Seconds that a client has to end the connection after its close was confirmed."""
_HIGH_WATER: Final = 1 << 20
_LAST: Final = 30.0
_AT_ONCE: Final = 64
_GATHERED: Final = 256


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
            self._log_end()
            self._release().add_done_callback(lambda _: self._server.clients.discard(self))

    def _log_end(self) -> None:
        session, failure = self.session, self.protocol.failure
        if failure is not None and not session.entered and failure.code == ACCESS_REFUSED:
            return  # the login was refused, which is logged with the name that was given
        if failure is not None:
            level = logging.INFO if failure.code == CONNECTION_FORCED else logging.WARNING
            _log.log(
                level, "%s was closed: %d %s", session.who, failure.code, failure.text, extra=session.log_fields
            )  # fmt: skip
        elif session.entered:
            cut = self.protocol.stage is Stage.RUNNING
            _log.info("%s %s", session.who, "was cut off" if cut else "has ended", extra=session.log_fields)

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
            session.report("its connection", error)
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
                name = login_name(method)
                _log.warning(
                    "login refused: user %r from %s, by %s", name, self.peer, method.mechanism,
                    extra={**self.session.log_fields, "user": name},
                )  # fmt: skip
                self.protocol.refuse(Failure(ACCESS_REFUSED, text, hard=True))
            else:
                self.session.user = user
                self.mechanism = method.mechanism
                self.protocol.accept()
            self.flush()
            return
        await self.session.handle(events)
        if self.protocol.stage is Stage.RUNNING:
            session = self.session
            _log.info("%s entered vhost %r", session.who, session.vhost.name, extra=session.log_fields)
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
            _log.warning(
                "%s: nothing was received for %d s", self.session.who, 2 * pause, extra=self.session.log_fields
            )
            self.abort()
            return
        self.protocol.beat()
        self.flush()
        if not self._over:
            self._timer = asyncio.get_running_loop().call_later(pause / 2, self._beat)

    def _too_late(self) -> None:
        _log.warning("%s did not open in time", self.session.who, extra=self.session.log_fields)
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
            self.session.report("its cleaning up", error)


def _address(transport: asyncio.BaseTransport, which: str) -> tuple[str, int]:
    found = transport.get_extra_info(which)
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) and len(found) >= 2 else ("", 0)
