"""`remuda://user:password@host:port`: a guest on another machine, over TCP, with TLS where the URL says so."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from remuda.broker.embedded.locks.forks import closed_after_fork
from remuda.broker.shared.directory.switched_backend import SwitchedBackend
from remuda.broker.shared.guest.guest import PATIENCE, Guest
from remuda.broker.shared.guest.remote_log import RemoteLog
from remuda.broker.shared.wire.tls import TlsSocket, no_passphrase
from remuda.broker.shared.wire.wire_frames import VERSION, Hello
from remuda.model.errors import HostNotResponding, InvalidOption, NotAllowed, RemudaError
from remuda.model.values.option_reading import unknown
from remuda.model.values.urls import Url

if TYPE_CHECKING:
    from remuda.log.eventlog import EventLog

_log = logging.getLogger("remuda.guest")
PORT: Final = 5680
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 2.0
_LONGEST_TIMEOUT: Final = 3600
_OPTIONS: Final = frozenset({"tls", "ca", "cert", "key", "verify", "timeout"})


class TcpTransport:
    """Connects a guest to a server over TCP."""

    def __init__(self, url: Url) -> None:
        options = dict(url.options)
        for name in sorted(set(options) - _OPTIONS):
            raise unknown("option", name, sorted(_OPTIONS), str(url))
        if not url.hosts:
            raise InvalidOption(f"{url} names no host; write remuda://user:password@host:{PORT}")
        self._url = url
        self._addresses = [(one.host, one.port or PORT) for one in url.hosts]
        self._context = _context(options) if _flag("tls", options.get("tls"), "ca" in options) else None
        self._connect_seconds = _seconds(options.get("timeout", "5"))

    @property
    def encrypts(self) -> bool:
        return self._context is not None

    def connect(self) -> socket.socket:
        failure: OSError = ConnectionRefusedError("no address")
        for host, port in self._addresses:
            try:
                return self._connect(host, port)
            except OSError as error:
                failure = error
        raise failure

    def _connect(self, host: str, port: int) -> socket.socket:
        peer = socket.create_connection((host, port), self._connect_seconds)
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._context is not None:
                return TlsSocket(self._context.wrap_socket(peer, server_hostname=host))  # type: ignore[return-value]
            peer.settimeout(None)
        except BaseException:
            peer.close()
            raise
        return peer

    def hello(self, token: str, epoch: int) -> Hello:
        # Without the epoch, which belongs to a directory: another server, or a restored copy, counts from its own.
        return Hello(VERSION, token, os.getpid(), self._url.user, self._url.password, far=True)

    def describe(self, pid: int) -> str:
        return f"the server at {self._url}"

    @property
    def remedy(self) -> str:
        return ""

    def begin(self, lease: int, events: int) -> Callable[[int], None] | None:
        return None

    def reader(self, guest: Guest) -> EventLog:
        return RemoteLog(guest)


class RemoteServer(SwitchedBackend):
    """A backend on another machine: a guest that never becomes the host, and reconnects when its connection is lost."""

    def __init__(self, url: Url, patience: float = PATIENCE) -> None:
        self._url = url
        self._patience = patience
        self._transport = TcpTransport(url)
        self.closed = False
        self._open()

    def _open(self) -> None:
        closed_after_fork(self)
        self._stop = threading.Event()
        guest = self.guest = Guest(self._transport, patience=self._patience)
        try:
            guest.connect()
        except OSError as error:
            closed = isinstance(error, ConnectionResetError) and not self._transport.encrypts
            hint = "; if the server wants TLS, add tls=true" if closed else ""
            raise HostNotResponding(f"no server answers at {self._url}: {error}{hint}. Nothing was changed") from error
        self._use(guest)
        self._thread = threading.Thread(target=self._follow, args=(guest,), name="remuda-guest", daemon=True)
        self._thread.start()

    def _follow(self, guest: Guest) -> None:
        try:
            self._go_on(guest)
        finally:
            guest.leave_line()

    def _go_on(self, guest: Guest) -> None:
        while not self._stop.is_set():
            guest.listen()
            pause = _FIRST_PAUSE
            while not self._stop.is_set():
                try:
                    # The epoch belongs to a directory: another server, or an older copy of its data, counts its own.
                    guest.epoch = 0
                    guest.connect()
                    break
                except OSError as error:
                    if pause == _FIRST_PAUSE:
                        _log.warning("the connection to %s was lost and is being reopened: %s", self._url, error)
                except NotAllowed as error:
                    _log.error("%s no longer admits this process: %s", self._url, error)
                    guest.closed = self.closed = True
                    guest.end(error)
                    return
                except RemudaError as error:
                    _log.error("%s refuses this process: %s", self._url, error)
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._stop.set()
        if self.guest is not None:
            self.guest.close()
            if self._thread is not threading.current_thread():
                self._thread.join(10)

    def disown(self) -> None:
        """In a fork: a connection of its own is made when it is first needed."""
        if self.guest is not None:
            self.guest.disown()
        self.guest = None
        if not self.closed:
            self._open_when_needed(self._open)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_TIMEOUT:
        raise InvalidOption(f"timeout must be a number of seconds above 0, at most {_LONGEST_TIMEOUT}, not {text!r}")
    return seconds


def _flag(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.lower() in ("1", "true", "yes", "on", ""):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise InvalidOption(f"{name} must be true or false, not {text!r}")


def _context(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if options.get("cert"):
            context.load_cert_chain(options["cert"], options.get("key"), password=no_passphrase)
    except (OSError, ssl.SSLError) as error:
        raise InvalidOption(f"a file for TLS cannot be read: {error}") from None
    if not _flag("verify", options.get("verify"), True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
