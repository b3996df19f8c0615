"""The wire over TCP (S6): what `remuda://` connects to.

A connection that has logged in is passed on, byte by byte, to whoever has the directory. So it makes no difference
whether this process is the host or a guest, and when the host ends clients find the next one here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from remuda.broker.embedded.runtime import Runtime
from remuda.broker.shared import frames, sockets
from remuda.broker.shared.directory import SharedDirectory
from remuda.broker.shared.frames import Hello
from remuda.broker.shared.host import Host
from remuda.broker.shared.permissions import Grants
from remuda.broker.shared.remote import PORT
from remuda.model.errors import BrokerClosed, InvalidOption, NotAllowed, RemudaError, StorageError
from remuda.server.addresses import is_loopback
from remuda.server.users import User, Users

_log = logging.getLogger("remuda.wire")
_CHUNK: Final = 1 << 16
_HELLO: Final = 1 << 16
"""More than the first frame of anybody can be."""
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
        """Let the clients go, and listen no longer."""
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
            _log.exception("the wire's server ended")
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
        await self._stop.wait()
        server.close()
        clients = list(self._clients)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self._look_after(reader, writer)
        except (OSError, asyncio.IncompleteReadError, EOFError):
            pass
        except asyncio.CancelledError:
            pass
        except Exception:
            _log.exception("a client's connection is closed after an error of this process")
        finally:
            self._clients.discard(task)
            writer.close()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(writer.wait_closed(), 1)

    async def _look_after(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_UNKNOWN_SECONDS):
                hello = await self._greet(reader, writer)
        except TimeoutError:
            return
        except RemudaError as error:
            _log.warning("%s was not let in: %s", writer.get_extra_info("peername"), error)
            writer.write(frames.frame(frames.FAILED, (0, frames.error_of(error))))
            await writer.drain()
            return
        peer = await asyncio.to_thread(self._connect)
        peer.setblocking(False)
        from_host, to_host = await asyncio.open_connection(sock=peer, limit=_CHUNK)
        for end in (writer, to_host):
            _read_in_chunks(end.transport)
        try:
            to_host.write(frames.frame(frames.HELLO, hello))
            forth = asyncio.create_task(_pass_on(reader, to_host))
            back = asyncio.create_task(_pass_on(from_host, writer))
            ways = [forth, back]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if not back.done():
                    # A client that has said everything may still hear the last answers.
                    with contextlib.suppress(OSError):
                        to_host.write_eof()
                    await asyncio.wait([back], timeout=_LAST_WORDS)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            to_host.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Hello:
        """The first frame, with its login checked and taken out."""
        length, kind = frames.HEAD.unpack(await reader.readexactly(frames.HEAD.size))
        if kind != frames.HELLO or length > _HELLO:
            raise frames.WireError("the first frame is not a hello; this is the port of a Remuda server")
        hello: Hello = frames.decode(Hello, await reader.readexactly(length))
        if len(self._clients) > self._limit:
            raise NotAllowed(f"this server has {self._limit} clients, which is its limit; try again later")
        grants: Grants | None = None
        if self._users is not None:
            known: User | None = None
            if hello.user is not None and hello.password is not None:
                async with self._logins:  # a password takes a core for a while: others are served meanwhile
                    known = await asyncio.to_thread(self._users.check, hello.user, hello.password)
            if known is None:
                raise NotAllowed("the user or the password is wrong; write remuda://user:password@host:port")
            grants = _grants(known, self._users.vhosts)
        return msgspec.structs.replace(hello, user=None, password=None, far=True, grants=grants)


def _grants(user: User, vhosts: Sequence[str]) -> Grants | None:
    """What the host is to let a user do; None for everything. The broker's own names are those of the vhost `/`."""
    if not user.enters("/"):
        raise NotAllowed(f"user {user.name!r} may not enter the vhost '/', where a bus works; have it granted")
    if user.may_everything:
        return None
    granted = {access: one.pattern for access, one in user.vhosts["/"].items()}
    return Grants(user.name, **granted, others=tuple(vhost for vhost in vhosts if vhost != "/"))


def _read_in_chunks(transport: asyncio.BaseTransport) -> None:
    """Have it ask for no more than is passed on at once: by default it makes a buffer of four times that for each
    read, which costs more than most reads."""
    if hasattr(transport, "max_size"):
        transport.max_size = _CHUNK


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one side to the other, no more at a time than the other takes."""
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


class _OpenGate:
    """Who comes here has been looked at already."""

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
    """Offer a broker at an address. Beyond this machine it needs users, and TLS unless `insecure` is said."""
    host, port = address
    if users is not None and not isinstance(users, Users):
        raise InvalidOption(f"users must be those of remuda.server.users, not {type(users).__name__}")
    if not is_loopback(host):
        if users is None:
            raise InvalidOption(f"listening on {host} lets other machines in: give users, or listen on 127.0.0.1")
        if tls is None and not insecure:
            raise InvalidOption(
                f"passwords for {host} would go over the network in plain text: give a TLS certificate, "
                "or allow it where something else encrypts"
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
        raise InvalidOption("only a broker of a directory or in memory can be served, not one at another place")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        closing()
        raise StorageError(f"{host}:{port} is not available: {error.strerror}; choose another port") from error
    return WireServer(connect, listening, tls, users, connections, closing)
