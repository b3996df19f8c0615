"""Bytes on their way to the socket."""

from __future__ import annotations


class SendBuffer:
    """Bytes queued for the socket, and the block being written. Every use needs the connection's lock, except for
    `sending`, which only the connection's thread touches."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that the socket has not taken yet."""
        self.sending: memoryview | None = None
        self._queued: list[bytes] = []

    def add(self, data: bytes) -> None:
        self._queued.append(data)
        self.size += len(data)

    def take(self) -> bool:
        """Move everything queued to `sending`; False if nothing is queued."""
        if not self._queued:
            return False
        self.sending = memoryview(b"".join(self._queued))
        self._queued = []
        return True

    def clear(self) -> None:
        """Drop everything, since the socket is gone."""
        self._queued, self.size, self.sending = [], 0, None
