"""Flow control over all publishers: how much they may have sent that the broker has not stored yet.

Beyond the limit, publishers are blocked and their sockets are not read. Open transactions cannot be made to wait, since
only their publishers can end them: beyond the limit, those lose their connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from remuda.amqp.codec.methods import ConnectionBlocked, ConnectionUnblocked
from remuda.server.amqp.protocol.failures import reply_text

if TYPE_CHECKING:
    from remuda.server.amqp.session import ClientSession

_PAUSE: Final = 5.0
"""How long publishers stay blocked after the disk was full."""


class Inflow:
    """Counts the bytes that were received and are not stored yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._uncommitted = 0
        self._full_until = 0.0
        self.blocked = False
        """Whether publishers have to wait."""
        self._reason: str | None = None
        self._sessions: set[ClientSession] = set()

    def low_on(self, what: str) -> bool:
        """Whether publishers wait because there is too little memory, or disk."""
        return (self._reason or "").startswith(f"low on {what}")

    def watch(self, session: ClientSession) -> None:
        """Add a session that has begun to publish."""
        self._sessions.add(session)
        if self._reason is not None:
            _tell(session, self._reason)

    def forget(self, session: ClientSession) -> None:
        self._sessions.discard(session)

    def add(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._most and self._reason is None:
            self._block("low on memory")

    def remove(self, size: int) -> None:
        self._bytes -= size
        if self._reason is not None:
            self.review()

    def gather(self, size: int) -> bool:
        """Let a transaction hold this many more bytes; False if that is too much."""
        self._uncommitted += size
        return self._uncommitted <= self._most

    def let_go(self, size: int) -> None:
        """A transaction has ended."""
        self._uncommitted -= size

    def full(self, reason: str) -> None:
        """The disk is full: block publishers for a while."""
        self._full_until = time.monotonic() + _PAUSE
        if self._reason is None:
            self._block(f"low on disk: {reason}")

    def review(self) -> None:
        """Unblock publishers once there is room again."""
        if self._reason is not None and self._bytes < self._most // 2 and time.monotonic() >= self._full_until:
            self._reason, self.blocked = None, False
            for session in self._sessions:
                if session.protocol.capable("connection.blocked"):
                    session.send(0, ConnectionUnblocked())
                session.resume()

    def _block(self, reason: str) -> None:
        self._reason, self.blocked = reply_text(reason), True
        for session in self._sessions:
            _tell(session, self._reason)


def _tell(session: ClientSession, reason: str) -> None:
    if session.protocol.capable("connection.blocked"):
        session.send(0, ConnectionBlocked(reason))
        session.flush_socket()
