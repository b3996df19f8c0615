"""`remuda serve`: listeners on one broker, until a signal ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from remuda.broker.port import Broker
from remuda.broker.shared.tls import no_passphrase
from remuda.model.errors import InvalidOption
from remuda.server.addresses import is_loopback
from remuda.server.amqp.connection import Limits
from remuda.server.amqp.shell import AmqpServer
from remuda.server.users import Users
from remuda.server.wire import WireServer, serve_wire

_FILES: Final = 1 << 16
_SPARE_FILES: Final = 200


class Listener(Protocol):
    """Something that clients connect to. `remuda serve` opens all of them on one broker."""

    async def open(self, broker: Broker) -> str:
        """Listen; returns the address that clients use."""
        ...

    async def close(self) -> None:
        """Tell clients, give back what they hold, and end."""
        ...


class AmqpListener:
    """AMQP 0-9-1, with or without TLS."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        users: Users | None = None,
        tls: ssl.SSLContext | None = None,
        vhosts: Sequence[str] = ("/",),
        limits: Limits | None = None,
    ) -> None:
        check_safe(host, users)
        self._host = host
        self._port = port
        self._users = users
        self._tls = tls
        self._vhosts = tuple(vhosts)
        self._limits = limits
        self._server: AmqpServer | None = None

    async def open(self, broker: Broker) -> str:
        limits = capped_by_files(self._limits or Limits())
        server = AmqpServer(broker.aio, users=self._users, vhosts=self._vhosts, limits=limits)
        await server.start()
        try:
            port = await server.listen(self._host, self._port, self._tls)
        except (OSError, UnicodeError) as error:
            await server.close()
            where = f"{self._host}:{self._port}"
            why = getattr(error, "strerror", None) or error
            raise InvalidOption(f"cannot listen on {where}: {why}; choose another --listen") from None
        self._server = server
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'amqps' if self._tls else 'amqp'}://{shown}:{port}"

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()


class WireListener:
    """The wire of `remuda://`, for buses on other machines."""

    def __init__(self, host: str, port: int, *, users: Users | None = None, tls: ssl.SSLContext | None = None) -> None:
        check_safe(host, users)
        self._address = (host, port)
        self._users = users
        self._tls = tls
        self._server: WireServer | None = None

    async def open(self, broker: Broker) -> str:
        self._server = await asyncio.to_thread(serve_wire, broker, self._address, self._tls, self._users)
        return self._server.url

    async def close(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.close)


def check_safe(host: str, users: Users | None) -> None:
    """Refuse to listen to other machines without passwords."""
    if users is None and not is_loopback(host):
        raise InvalidOption(
            f"listening on {host} would let everybody on the network in without a password. Give --users FILE, which "
            "`remuda users add FILE NAME` creates, or listen on 127.0.0.1"
        )


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """A server's side of TLS 1.2 or newer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except (OSError, ssl.SSLError) as error:
        raise InvalidOption(f"the certificate {certificate!r} or its key {key!r} cannot be used: {error}") from None
    return context


def run(broker: Broker, listeners: Sequence[Listener], ready: Callable[[list[str]], None]) -> None:
    """Listen until SIGTERM or Ctrl-C, then end in order."""
    allow_many_connections()
    asyncio.run(_run(broker, listeners, ready))


def allow_many_connections() -> None:
    """Raise the limit of open files: the usual default is too low for a thousand clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def capped_by_files(limits: Limits) -> Limits:
    """These limits, with few enough connections to leave some open files to the broker itself."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits
    most = max(files - min(_SPARE_FILES, files // 2), 1)
    return msgspec.structs.replace(limits, connection_max=min(limits.connection_max, most))


async def _run(broker: Broker, listeners: Sequence[Listener], ready: Callable[[list[str]], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    opened: list[Listener] = []
    try:
        addresses = []
        for listener in listeners:
            addresses.append(await listener.open(broker))
            opened.append(listener)
        ready(addresses)
        notify_system("READY=1")
        await stop.wait()
        notify_system("STOPPING=1")
    finally:
        for listener in reversed(opened):
            await listener.close()


def notify_system(state: str) -> None:
    """Tell systemd, if it started this process and wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)
