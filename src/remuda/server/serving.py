"""`remuda serve`: listeners on one broker, until a signal ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from remuda.broker.port import Broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import InvalidOption, RemudaError
from remuda.server.addresses import Listen, is_loopback
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.protocol.connection import Limits
from remuda.server.certificates import Certificates
from remuda.server.management.definitions import Import
from remuda.server.users import Users
from remuda.server.watched_files import INTERVAL
from remuda.server.wire import WireServer, serve_wire

_log = logging.getLogger("remuda.server")
_FILES: Final = 1 << 16
_SPARE_FILES: Final = 200
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Of malloc.h."""
_LARGE: Final = 512 << 10


class Listener(Protocol):
    """Something that clients connect to. `remuda serve` opens all of them on one broker."""

    async def open(self, broker: Broker) -> str:
        """Listen; returns the address that clients use."""
        ...

    async def reload(self) -> None:
        """Read files again that may have changed, such as users and settings."""
        ...

    async def close(self) -> None:
        """Tell clients, give back what they hold, and end."""
        ...


class AmqpListener:
    """AMQP 0-9-1: plain, with TLS or, with `tls_address`, both. Definitions are taken over before anybody is let in."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        users: Users | None = None,
        tls: Certificates | None = None,
        tls_address: Listen | None = None,
        vhosts: Sequence[str] = ("/",),
        limits: Limits | None = None,
        definitions: Mapping[str, Any] | None = None,
        reread: Callable[[], Limits] | None = None,
        shovels: Path | None = None,
    ) -> None:
        plain = tls is None or tls_address is not None
        self._addresses = [(Listen(host, port), None if plain else tls)]
        if tls_address is not None:
            self._addresses.append((tls_address, tls))
        for address, _ in self._addresses:
            check_safe(address.host, users)
        self._definitions = definitions
        self._reread = reread
        self._shovels = shovels
        self._users = users
        self._vhosts = tuple(vhosts)
        self._limits = limits
        self._server: AmqpServer | None = None

    async def open(self, broker: Broker) -> str:
        limits = capped_by_files(self._limits or Limits())
        server = AmqpServer(broker.aio, users=self._users, vhosts=self._vhosts, limits=limits, shovels=self._shovels)
        await server.start()
        if self._definitions is not None:
            await Import(server).run(self._definitions)
        shown = []
        for (host, port), tls in self._addresses:
            try:
                found = await server.listen(host, port, None if tls is None else tls.context)
            except (OSError, UnicodeError) as error:
                await server.close()
                why = getattr(error, "strerror", None) or error
                raise InvalidOption(f"cannot listen on {host}:{port}: {why}; choose another --listen") from None
            shown.append(f"{'amqps' if tls else 'amqp'}://{f'[{host}]' if ':' in host else host}:{found}")
        self._server = server
        return " and ".join(shown)

    @property
    def server(self) -> AmqpServer:
        """The server, once it is open."""
        if self._server is None:
            raise InvalidOption("AMQP is opened before what shows it")
        return self._server

    async def reload(self) -> None:
        if self._reread is not None and self._server is not None:
            self._server.limits = capped_by_files(await asyncio.to_thread(self._reread))
        if self._users is not None and self._server is not None:
            await asyncio.to_thread(self._users.refresh, force=True)
            await self._server.apply_users(self._users)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()


class WireListener:
    """The wire of `remuda://`, for buses on other machines."""

    def __init__(self, host: str, port: int, *, users: Users | None = None, tls: Certificates | None = None) -> None:
        check_safe(host, users)
        self._address = (host, port)
        self._users = users
        self._tls = tls
        self._server: WireServer | None = None

    async def open(self, broker: Broker) -> str:
        tls = None if self._tls is None else self._tls.context
        self._server = await asyncio.to_thread(serve_wire, broker, self._address, tls, self._users)
        return self._server.url

    async def reload(self) -> None:
        if self._users is not None:
            await asyncio.to_thread(self._users.refresh, force=True)

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


def run(
    broker: Broker,
    listeners: Sequence[Listener],
    ready: Callable[[list[str]], None],
    *,
    certificates: Certificates | None = None,
) -> None:
    """Listen until SIGTERM or Ctrl-C, then end in order. SIGHUP has users and certificates read again."""
    allow_many_connections()
    give_memory_back()
    asyncio.run(_run(broker, listeners, ready, certificates))


def allow_many_connections() -> None:
    """Raise the limit of open files: the usual default is too low for a thousand clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_memory_back() -> None:
    """Have what a burst of clients or the sealing of a segment once needed go back to the system."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own allocator keeps it
    with contextlib.suppress(AttributeError, OSError):  # other systems than Linux with glibc have no such function
        tune = ctypes.CDLL(None).mallopt
        tune(_ARENA_MAX, 2)  # by default each thread may get one of its own, which keeps what it once had
        tune(_MMAP_THRESHOLD, _LARGE)
        tune(_TRIM_THRESHOLD, _LARGE)


def capped_by_files(limits: Limits) -> Limits:
    """These limits, with few enough connections to leave some open files to the broker itself."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return limits
    most = max(files - min(_SPARE_FILES, files // 2), 1)
    return msgspec.structs.replace(limits, connection_max=min(limits.connection_max, most))


async def _run(
    broker: Broker,
    listeners: Sequence[Listener],
    ready: Callable[[list[str]], None],
    certificates: Certificates | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    failures: list[Exception] = []

    def stopped(error: Exception) -> None:
        failures.append(error)
        with contextlib.suppress(RuntimeError):  # it may have ended meanwhile
            loop.call_soon_threadsafe(stop.set)

    if isinstance(broker, EmbeddedBroker):
        broker.when_stopped(stopped)
    hangup = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    following = loop.create_task(_follow(listeners, certificates, hangup))
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
        following.cancel()
        await asyncio.wait([following])
        for listener in reversed(opened):
            with contextlib.suppress(*([RemudaError] if failures else [])):
                await listener.close()
    if failures:  # a supervisor is to start it again
        raise failures[0]


async def _follow(listeners: Sequence[Listener], certificates: Certificates | None, hangup: asyncio.Event) -> None:
    """Read certificates again when they change, and everything after SIGHUP."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(hangup.wait(), INTERVAL)
        asked = hangup.is_set()
        hangup.clear()
        try:
            if certificates is not None:
                await asyncio.to_thread(certificates.refresh, force=asked)
            if asked:
                for listener in listeners:
                    await listener.reload()
                _log.info("read users, certificates and settings again, as SIGHUP asked")
        except InvalidOption as error:
            _log.error("%s; everything stays as it was", error)
        except Exception:
            _log.exception("what changed could not be read; everything stays as it was")


def notify_system(state: str) -> None:
    """Tell systemd, if it started this process and wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)
