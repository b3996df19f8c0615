"""The parent's end of the connection to a handler's process, used without giving up the interpreter.

`Connection` gives it up for every read and write, of which it makes two for a batch. A worker that has a busy thread
beside it then waits for a turn of the interpreter each time, 5 ms by default, and a batch is over in less than one.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final

from remuda.gil import raise_failed
from remuda.gil import recv as _recv
from remuda.gil import send as _send

_LENGTH: Final = struct.Struct("!i")
_MOST: Final = 1 << 18
"""What is larger takes a while to copy, in which other threads may run."""
_FLAGS: Final = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class ChildConnection:
    """Sends and receives what the `Connection` at the other end receives and sends."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer = ctypes.create_string_buffer(1 << 16)
        self._received = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def send(self, data: bytes) -> None:
        """Send it whole; waits where the other end does not keep up."""
        if _send is None or len(data) > _MOST:
            self._connection.send_bytes(data)
            return
        framed = _LENGTH.pack(len(data)) + data
        sent: int = _send(self.fileno(), framed, len(framed), _FLAGS)
        if sent < 0:
            try:
                raise_failed()
            except (BlockingIOError, InterruptedError):
                sent = 0
        rest = memoryview(framed)[sent:]
        while rest:
            rest = rest[os.write(self.fileno(), rest) :]

    def receive(self) -> list[bytes]:
        """Everything that has come whole; raises `EOFError` at the end."""
        if _recv is None:
            return [self._connection.recv_bytes()] if self._connection.poll(0) else []
        size: int = _recv(self.fileno(), self._buffer, len(self._buffer), _FLAGS)
        if size == 0:
            raise EOFError
        if size > 0:
            self._received += memoryview(self._buffer)[:size]
        else:
            try:
                raise_failed()
            except (BlockingIOError, InterruptedError):
                return []
        return list(self._whole())

    def _whole(self) -> Iterator[bytes]:
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length < 0:
                raise OSError("the process sent more than 2 GiB at once")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            yield bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
