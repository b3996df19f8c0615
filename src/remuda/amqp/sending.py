"""Bytes on their way to the socket."""

from __future__ import annotations


class SendBuffer:
    """What is queued, and what the socket is being given of it. Whoever uses it holds the connection's lock, save the
    connection's thread for `sending`, which is its own."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that the socket has not taken yet."""
        self.sending: memoryview | None = None
        self._queued: list[bytes] = []

    def add(self, data: bytes) -> None:
        self._queued.append(data)
        self.size += len(data)

    def take(self) -> bool:
        """Have everything queued sent; False if there is nothing."""
        if not self._queued:
            return False
        self.sending = memoryview(b"".join(self._queued))
        self._queued = []
        return True

    def clear(self) -> None:
        """The socket is gone."""
        self._queued, self.size, self.sending = [], 0, None
