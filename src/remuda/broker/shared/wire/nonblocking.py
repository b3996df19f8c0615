"""Sends and receives that do not block and do not release the GIL. In C where that could be built.

`socket.send` and `socket.recv` release the GIL even if they cannot block. In a process that is busy with Python code of
its own, each of them then waits to get it back, and a guest's message waits for all of them: keeping it makes two to
three times as many messages with a busy host.
"""

from __future__ import annotations

import ctypes
import socket
from typing import Final

from remuda.broker.embedded.pending import Pending
from remuda.gil import raise_failed
from remuda.gil import recv as _recv
from remuda.gil import send as _send
from remuda.model.messages import Messages
from remuda.model.operations.commands import Publish
from remuda.model.operations.results import Receipt
from remuda.native import wire

_LITTLE: Final = 1 << 16
_MUCH: Final = 1 << 18
_FLAGS: Final = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
if wire is not None:
    wire.set_up(Publish, Messages, Receipt, Pending)


def send_at_once(peer: socket.socket, data: bytes | memoryview) -> int:
    """Send as much as the system takes now; raises `BlockingIOError` if that is nothing."""
    if len(data) > _LITTLE:
        return peer.send(data, _FLAGS)
    if wire is not None:
        return wire.send(peer.fileno(), data if type(data) is bytes else bytes(data))
    if _send is None:
        return peer.send(data, _FLAGS)
    sent: int = _send(peer.fileno(), bytes(data), len(data), _FLAGS)
    return sent if sent >= 0 else raise_failed()


class Receiving:
    """Receives from one connection or several, on one thread at a time.

    Large buffers are costly to allocate, so one is used only after much has come at once.
    """

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LITTLE)
        self._address = ctypes.addressof(self._buffer)
        self._view = memoryview(self._buffer).cast("B")
        self._much = False

    def receive(self, peer: socket.socket) -> bytes:
        """What has come; empty at the end of the connection. Raises `BlockingIOError` if nothing has."""
        if self._much or (wire is None and _recv is None):
            data = peer.recv(_MUCH if self._much else _LITTLE, _FLAGS)
        elif wire is not None:
            data = wire.receive(peer.fileno())
        else:
            size = _recv(peer.fileno(), self._address, _LITTLE, _FLAGS)
            data = bytes(self._view[: size if size >= 0 else raise_failed()])
        self._much = len(data) >= _LITTLE
        return data

    def receive_publish(self, peer: socket.socket, producer: str) -> bytes | Publish:
        """As `receive`; or the command, if what has come is the publish of one message and nothing else."""
        if self._much or wire is None:
            return self.receive(peer)
        received: bytes | Publish = wire.receive_publish(peer.fileno(), producer)
        self._much = type(received) is bytes and len(received) >= _LITTLE
        return received
