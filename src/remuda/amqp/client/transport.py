"""A socket with AMQP spoken on it: connect, log in, agree on sizes."""

from __future__ import annotations

import socket
import ssl
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from remuda.amqp.client.delivery_parser import DeliveryReader
from remuda.amqp.codec.frames import FRAME_MIN, PROTOCOL_HEADER, Event, method_frame
from remuda.amqp.codec.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from remuda.amqp.connection_options import ConnectionOptions
from remuda.amqp.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    AmqpError,
    ConnectionClosed,
    ConnectionLost,
    LoginRefused,
    ReplyTimeout,
)
from remuda.model.errors import InvalidOption

M = TypeVar("M", bound=Method)


class Link:
    """One connected socket, with what both ends agreed on."""

    def __init__(self, sock: socket.socket, place: str) -> None:
        self.sock = sock
        self.place = place
        self.parser = DeliveryReader()
        self.frame_max = 0
        self.channel_max = 0
        self.heartbeat = 0
        self.server_properties: dict[str, Any] = {}
        self.secret = ""
        """The password of the login."""
        self._early: list[Event] = []

    @classmethod
    def connect(cls, host: str, port: int, options: ConnectionOptions) -> Link:
        """A link on which channels can be opened. Raises an `OSError` or an `AmqpError` that names the place."""
        deadline = time.monotonic() + options.connect_timeout
        sock = socket.create_connection((host, port), timeout=options.connect_timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if options.tls is not None:
                sock = options.tls.wrap_socket(sock, server_hostname=options.server_name or host)
            link = cls(sock, f"{host}:{port}")
            link._log_in(options, deadline)
            sock.setblocking(False)
            return link
        except BaseException:
            sock.close()
            raise

    def read(self) -> bytes | None:
        """What has arrived; None if nothing has. Raises `ConnectionLost` at the end."""
        try:
            data = self.sock.recv(262144)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise ConnectionLost(f"the connection to {self.place} broke: {error}") from error
        if not data:
            raise ConnectionLost(f"{self.place} closed the connection without giving a reason")
        return data

    def write(self, data: memoryview) -> int:
        """Send as much as the socket takes; returns how much."""
        try:
            return self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise ConnectionLost(f"the connection to {self.place} broke: {error}") from error

    def close(self) -> None:
        self.sock.close()

    def _log_in(self, options: ConnectionOptions, deadline: float) -> None:
        self.sock.sendall(PROTOCOL_HEADER)
        start = self._expect(ConnectionStart, deadline)
        self.server_properties = start.server_properties
        mechanism = options.mechanism
        if mechanism.encode() not in start.mechanisms.split():
            raise LoginRefused(
                f"{self.place} offers no {mechanism} login, only {start.mechanisms.decode('utf-8', 'replace')}"
            )
        self.secret = _secret(options)
        response = b"" if mechanism == "EXTERNAL" else f"\0{options.user}\0{self.secret}".encode()
        self._send(ConnectionStartOk(_client_properties(options), mechanism, response, "en_US"))
        tune = self._expect(ConnectionTune, deadline)
        self.frame_max = max(FRAME_MIN, min(options.frame_max, tune.frame_max or options.frame_max))
        self.channel_max = min(options.channel_max, tune.channel_max or 65535)
        self.heartbeat = min(options.heartbeat, tune.heartbeat) if options.heartbeat and tune.heartbeat else 0
        self.heartbeat = self.heartbeat or options.heartbeat or tune.heartbeat
        self.parser.frame_max = self.frame_max
        self._send(ConnectionTuneOk(self.channel_max, self.frame_max, self.heartbeat))
        self._send(ConnectionOpen(options.virtual_host))
        self._expect(ConnectionOpenOk, deadline)

    def _send(self, method: Method) -> None:
        self.sock.sendall(method_frame(0, method))

    def _expect(self, kind: type[M], deadline: float) -> M:
        while True:
            while self._early:
                _, method, _, _ = self._early.pop(0)
                if isinstance(method, kind):
                    return method
                if isinstance(method, ConnectionClose):
                    self._send(ConnectionCloseOk())
                    raise self._refusal(method)
            if self.parser.error is not None:
                raise self.parser.error
            left = deadline - time.monotonic()
            if left <= 0:
                raise ReplyTimeout(f"{self.place} did not answer in time")
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(65536)
            except TimeoutError:
                raise ReplyTimeout(f"{self.place} did not answer in time") from None
            if not data:
                raise ConnectionLost(f"{self.place} closed the connection during the login")
            self._early = self.parser.feed(data)

    def _refusal(self, method: ConnectionClose) -> AmqpError:
        if method.code in (ACCESS_REFUSED, NOT_ALLOWED):
            return LoginRefused(f"{self.place} refused the login: {method.code} {method.text}")
        return ConnectionClosed(method.code, method.text, "connection")


def _secret(options: ConnectionOptions) -> str:
    try:
        return options.secret()
    except InvalidOption as error:
        raise LoginRefused(str(error)) from None


def _client_properties(options: ConnectionOptions) -> dict[str, Any]:
    try:
        release = version("remuda")
    except PackageNotFoundError:
        release = "unknown"
    properties: dict[str, Any] = {
        "product": "remuda",
        "version": release,
        "platform": "Python",
        "capabilities": {
            "publisher_confirms": True,
            "consumer_cancel_notify": True,
            "basic.nack": True,
            "connection.blocked": True,
            "exchange_exchange_bindings": True,
            "authentication_failure_close": True,
        },
    }
    if options.name:
        properties["connection_name"] = options.name
    return properties
