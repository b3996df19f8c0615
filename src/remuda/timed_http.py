"""Answers over HTTP that have come by a deadline. `http.client` limits each read alone, so that a server which sends a
byte now and then would hold its caller for ever."""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any


class _Reads(io.RawIOBase):
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline
        self._raw = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not come in time")
        self._connection.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """What `http.client` asks of a socket for an answer."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self._connection, self._deadline))


def response_until(deadline: float) -> Callable[..., HTTPResponse]:
    """The `response_class` of a connection whose answer must have come by this time of `time.monotonic`."""

    def response(connection: socket.socket, *more: Any, **named: Any) -> HTTPResponse:
        return HTTPResponse(_Socket(connection, deadline), *more, **named)  # type: ignore[arg-type]

    return response
