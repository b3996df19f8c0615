"""The wire over TCP (S6): what `remuda://` connects to.

After the login, a connection is relayed byte by byte to the process that hosts the directory. So it makes no difference
whether this process is the host or a guest, and when the host ends, clients reach the next one through here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from remuda.broker.embedded.runtime import Runtime
from remuda.broker.shared.directory.shared_directory import SharedDirectory
from remuda.broker.shared.guest.remote import PORT
from remuda.broker.shared.host.host import Host
from remuda.broker.shared.wire import sockets, wire_frames
from remuda.broker.shared.wire.permissions import Grants
from remuda.broker.shared.wire.wire_frames import Hello
from remuda.model.errors import BrokerClosed, InvalidOption, NotAllowed, RemudaError, StorageError
from remuda.server.addresses import is_loopback
from remuda.server.users import User, Users
from remuda.server.watched_files import INTERVAL

_log = logging.getLogger("remuda.wire")
_CHUNK: Final = 1 << 16
_HELLO: Final = 1 << 16
"""More bytes than the first frame of any client has."""
_UNKNOWN_SECONDS: Final = 10.0
_CONNECTIONS: Final = 1000
_LAST_WORDS: Final = 5.0


class WireServer:
    """Listens for clients until it is closed."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        users: Users | None,
        limit: int,
        close: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._listening = listening
        self._tls = tls
        self._users = users
        self._limit = limit
        self._close = close
        self._clients: set[asyncio.Task[None]] = set()
        self._names: dict[asyncio.Task[Any] | None, User] = {}
        """Whom each client has logged in as."""
        self._logins = asyncio.Semaphore(2)
        host, port = listening.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="remuda-wire", daemon=True)
        self._thread.start()
        self._ready.wait(30)

    @property
    def url(self) -> str:
        host, port = self.address
        return f"remuda://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Disconnect the clients and stop listening."""
        if self._thread.is_alive() and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
        self._close()

    def __enter__(self) -> WireServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            _log.exception("the server of remuda:// failed")
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(
            self._accept, sock=self._listening, ssl=self._tls, limit=_CHUNK,
            ssl_handshake_timeout=None if self._tls is None else _UNKNOWN_SECONDS,
        )  # fmt: skip
        self._ready.set()
        following = None if self._users is None else asyncio.create_task(self._follow(self._users))
        await self._stop.wait()
        if following is not None:
            following.cancel()
        server.close()
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _follow(self, users: Users) -> None:
        """Disconnect clients whose user was changed or removed: the host knows their grants from their login."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await asyncio.to_thread(users.refresh)
                for task, user in list(self._names.items()):
                    if task is not None and users.find(user.name) is not user:
                        _log.info("a client was disconnected, since user %r was changed or removed", user.name)
                        task.cancel()
            except Exception:
                _log.exception("the users could not be followed; it is tried again")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.IncompleteReadError, EOFError):
            pass
        except asyncio.CancelledError:
            pass
        except Exception:
            _log.exception("a client was disconnected because of an error in this process")
        finally:
            self._clients.discard(task)
            self._names.pop(task, None)
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(writer.wait_closed(), 1)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Log a client in, then pass bytes between it and the host until one of them closes."""
        try:
            async with asyncio.timeout(_UNKNOWN_SECONDS):
                hello = await self._log_in(reader)
        except TimeoutError:
            return
        except RemudaError as error:
            _log.warning("a client at %s was refused: %s", writer.get_extra_info("peername"), error)
            writer.write(wire_frames.frame(wire_frames.FAILED, (0, wire_frames.error_of(error))))
            await writer.drain()
            return
        peer = await asyncio.to_thread(self._connect)
        peer.setblocking(False)
        from_host, to_host = await asyncio.open_connection(sock=peer, limit=_CHUNK)
        for end in (writer, to_host):
            _read_in_chunks(end.transport)
        try:
            to_host.write(wire_frames.frame(wire_frames.HELLO, hello))
            forth = asyncio.create_task(_pass_on(reader, to_host))
            back = asyncio.create_task(_pass_on(from_host, writer))
            ways = [forth, back]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if not back.done():
                    # A client that has closed its sending side still gets the last answers.
                    with contextlib.suppress(OSError):
                        to_host.write_eof()
                    await asyncio.wait([back], timeout=_LAST_WORDS)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            to_host.close()

    async def _log_in(self, reader: asyncio.StreamReader) -> Hello:
        """Read the first frame and check its login; returns it for the host, with grants instead of the password."""
        length, kind = wire_frames.HEAD.unpack(await reader.readexactly(wire_frames.HEAD.size))
        if kind != wire_frames.HELLO or length > _HELLO:
            raise wire_frames.WireError("the first frame is not a hello; this is the port of a Remuda server")
        hello: Hello = wire_frames.decode(Hello, await reader.readexactly(length))
        if len(self._clients) > self._limit:
            raise NotAllowed(f"this server has {self._limit} clients, which is its limit; try again later")
        grants: Grants | None = None
        if self._users is not None:
            known: User | None = None
            if hello.user is not None and hello.password is not None:
                async with self._logins:  # checking a password keeps a core busy: leave some for other work
                    known = await asyncio.to_thread(self._users.check, hello.user, hello.password)
            if known is None:
                raise NotAllowed("the user or the password is wrong; write remuda://user:password@host:port")
            grants = _grants(known)
            self._names[asyncio.current_task()] = known
        return msgspec.structs.replace(hello, user=None, password=None, far=True, grants=grants)


def _grants(user: User) -> Grants | None:
    """What the host lets a user do; None for everything. The broker's own names are those of the vhost `/`."""
    if not user.enters("/"):
        raise NotAllowed(f"user {user.name!r} may not enter the vhost '/', where a bus works; have it granted")
    if user.may_everything:
        return None
    granted = {access: one.pattern for access, one in user.vhosts["/"].items()}
    return Grants(user.name, **granted)


def _read_in_chunks(transport: asyncio.BaseTransport) -> None:
    """Limit reads to what is passed on at once: by default asyncio allocates a buffer four times that size for each
    read, which costs more than most reads."""
    if hasattr(transport, "max_size"):
        transport.max_size = _CHUNK


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes from one side to the other, as fast as the other side takes them."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


class _OpenGate:
    """Admits every connection: the clients of this server have logged in already."""

    def admit(self, connection: Any, hello: Hello) -> None:
        pass

    def lives(self, token: str) -> bool | None:
        return None

    def marks(self, token: str) -> None:
        return None


def serve_wire(
    broker: Any,
    address: tuple[str, int] = ("127.0.0.1", PORT),
    tls: ssl.SSLContext | None = None,
    users: Users | None = None,
    *,
    connections: int = _CONNECTIONS,
    insecure: bool = False,
) -> WireServer:
    """Offer a broker at an address. For other machines it needs users, and TLS unless `insecure` is set."""
    host, port = address
    if users is not None and not isinstance(users, Users):
        raise InvalidOption(f"users must be a remuda.server.users.Users, not {type(users).__name__}")
    if not is_loopback(host):
        if users is None:
            raise InvalidOption(f"listening on {host} lets other machines in: give users, or listen on 127.0.0.1")
        if tls is None and not insecure:
            raise InvalidOption(
                f"passwords for {host} would cross the network in plain text: give a TLS certificate; in Python, "
                "insecure=True allows it where something else encrypts"
            )
    backend = broker.runtime
    closing: Callable[[], None] = lambda: None  # noqa: E731
    if isinstance(backend, SharedDirectory):
        path = backend.path

        def connect() -> socket.socket:
            return sockets.connect(path)

    elif isinstance(backend, Runtime):
        engine = Host(backend)
        engine.start()

        def connect() -> socket.socket:
            if backend.closed:
                raise BrokerClosed("the broker is closed")
            ours, theirs = socket.socketpair()
            engine.adopt(theirs, _OpenGate())
            return ours

        def closing() -> None:
            engine.stop(moves=False)

    else:
        raise InvalidOption("only a broker in a directory or in memory can be served, not a remote one")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=256)
    except (OSError, UnicodeError) as error:
        closing()
        why = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise StorageError(f"cannot listen on {host}:{port} for remuda://: {why}; choose another address") from error
    return WireServer(connect, listening, tls, users, connections, closing)
