"""The host's end of a connection, and where new ones come in. What goes over them is for others to say."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from remuda.broker.shared import frames
from remuda.broker.shared.frames import Hello
from remuda.broker.shared.quick import send_at_once
from remuda.broker.shared.readiness import READ

if TYPE_CHECKING:
    from remuda.broker.embedded.attempts import AttemptMarks
    from remuda.broker.shared.session import Session

_STOP_READING: Final = 4 << 20
"""Unsent bytes at which a guest is not listened to until it has taken its answers."""
_LARGE: Final = 1 << 18
"""Bytes that are sent by themselves: others are joined first."""
_SLOW_AT_ONCE: Final = 4
_LOAD: Final = 4000
COMMAND_WEIGHT: Final = 40
"""A command may bring messages with it: at most a hundred are answered in one turn, and four thousand publishes."""


class Gate(Protocol):
    """Who may come in."""

    def admit(self, connection: Connection, hello: Hello) -> None:
        """Raise to refuse."""

    def lives(self, token: str) -> bool | None:
        """Whether the guest's process is there; None where nobody can tell."""

    def marks(self, token: str) -> AttemptMarks | None:
        """What a guest that is gone had begun with, where that is known."""


class Connection:
    """A socket that does not block, and the bytes on their way through it."""

    def __init__(self, peer: socket.socket, gate: Gate, *, local: bool, limit: int = frames.MAX_FRAME) -> None:
        self.peer = peer
        self.gate = gate
        self.local = local
        self.session: Session | None = None
        self.buffer = frames.Buffer(limit)
        self.unsent: deque[bytes | memoryview] = deque()
        self.unsent_bytes = 0
        self.closing = False
        """Whether it is to be closed once everything is sent."""
        self.since = time.monotonic()
        self.waits_for = READ
        self.slow = 0
        """Questions of it that another thread works on."""
        self.load = 0
        """What it asked for in this turn, by weight."""
        self.stalled = False
        """Whether frames of it lie here that are not looked at yet."""
        self.closed = False
        self.touched: set[Connection] = set()
        """Where the host notes which connections it has to look at in this turn."""

    @property
    def full(self) -> bool:
        """Whether it has asked for more than it has taken: then it is not listened to for now."""
        return self.unsent_bytes > _STOP_READING or self.slow >= _SLOW_AT_ONCE or self.load >= _LOAD

    def send(self, data: bytes) -> int:
        if data:
            self.unsent.append(data)
            self.unsent_bytes += len(data)
            self.touched.add(self)
        return self.unsent_bytes

    @property
    def ready(self) -> bool:
        """Whether frames that lie here may be looked at now."""
        return self.stalled and not self.full

    def flush(self) -> None:
        """Send as much as the peer takes."""
        unsent = self.unsent
        if not unsent:
            return
        data: bytes | memoryview
        if len(unsent) == 1 or len(unsent[0]) >= _LARGE:
            data = unsent.popleft()
        else:
            data = b"".join(unsent)
            unsent.clear()
        try:
            sent = send_at_once(self.peer, data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self.unsent_bytes -= sent
        if sent < len(data):
            unsent.appendleft(memoryview(data)[sent:])  # a copy for each part would be dear where much is on its way


class Listener:
    """A socket on which guests come in."""

    def __init__(self, listening: socket.socket, gate: Gate, *, local: bool, limit: int = frames.MAX_FRAME) -> None:
        self.socket = listening
        self.gate = gate
        self._local = local
        self._limit = limit
        listening.setblocking(False)

    def connect(self, peer: socket.socket) -> Connection:
        return Connection(peer, self.gate, local=self._local, limit=self._limit)

    def again(self) -> Listener | None:
        """Another one in its place, if guests cannot find it any more."""
        return None

    def close(self) -> None:
        self.socket.close()
