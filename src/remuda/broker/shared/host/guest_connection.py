"""The host's end of a connection, and the sockets that accept new ones. Knows bytes, not what they mean."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.nonblocking import send_at_once
from remuda.broker.shared.wire.poller import READ
from remuda.broker.shared.wire.wire_frames import Hello

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.attempts import AttemptMarks
    from remuda.broker.shared.host.guest_session import GuestSession

_STOP_READING: Final = 4 << 20
"""With more unsent bytes than this, nothing is read from a guest until it has taken its answers."""
_LARGE: Final = 1 << 18
"""Data of this many bytes is sent by itself; smaller pieces are joined first."""
_SLOW_AT_ONCE: Final = 4
_LOAD: Final = 4000
COMMAND_WEIGHT: Final = 40
"""The load of a command, whose answer may carry messages: one turn handles at most 100 commands, or 4000 publishes."""


class Gate(Protocol):
    """Decides which guests are admitted."""

    def admit(self, connection: Connection, hello: Hello) -> None:
        """Raise to refuse."""

    def lives(self, token: str) -> bool | None:
        """Whether the guest's process is alive; None if that is unknown."""

    def marks(self, token: str) -> AttemptMarks | None:
        """What a guest that is gone had begun, if that is known."""


class Connection:
    """A socket that does not block, and the bytes on their way through it."""

    def __init__(self, peer: socket.socket, gate: Gate, *, local: bool, limit: int = wire_frames.MAX_FRAME) -> None:
        self.peer = peer
        self.gate = gate
        self.local = local
        self.session: GuestSession | None = None
        self.buffer = wire_frames.Buffer(limit)
        self.unsent: deque[bytes | memoryview] = deque()
        self.unsent_bytes = 0
        self.closing = False
        """Whether to close it once everything is sent."""
        self.since = time.monotonic()
        self.waits_for = READ
        self.slow = 0
        """How many of its queries another thread works on."""
        self.load = 0
        """The weight of its requests in this turn."""
        self.stalled = False
        """Whether it has frames in the buffer that are not handled yet."""
        self.closed = False
        self.touched: set[Connection] = set()
        """The host's set of connections to attend to in this turn."""

    @property
    def full(self) -> bool:
        """Whether too many of its answers are outstanding: then nothing is read from it for now."""
        return self.unsent_bytes > _STOP_READING or self.slow >= _SLOW_AT_ONCE or self.load >= _LOAD

    def send(self, data: bytes) -> int:
        if data:
            self.unsent.append(data)
            self.unsent_bytes += len(data)
            self.touched.add(self)
        return self.unsent_bytes

    @property
    def ready(self) -> bool:
        """Whether the frames in its buffer may be handled now."""
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
            unsent.appendleft(memoryview(data)[sent:])  # not copied, which would be slow for much data


class Listener:
    """A socket that accepts guests."""

    def __init__(
        self, listening: socket.socket, gate: Gate, *, local: bool, limit: int = wire_frames.MAX_FRAME
    ) -> None:
        self.socket = listening
        self.gate = gate
        self._local = local
        self._limit = limit
        listening.setblocking(False)

    def connect(self, peer: socket.socket) -> Connection:
        return Connection(peer, self.gate, local=self._local, limit=self._limit)

    def again(self) -> Listener | None:
        """A replacement, if guests can no longer find this one."""
        return None

    def close(self) -> None:
        self.socket.close()
