"""A TLS connection that one thread reads while others write: OpenSSL allows only one call at a time."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time


def no_passphrase() -> str:
    """Called for an encrypted key: raises, instead of a prompt for its passphrase that would seem to hang."""
    raise ssl.SSLError("the key is encrypted; give one without a passphrase, readable for its owner alone")


class TlsSocket:
    """The methods of a socket that a guest uses. It never blocks while it holds the lock."""

    def __init__(self, peer: ssl.SSLSocket) -> None:
        self._peer = peer
        self._lock = threading.Lock()
        self._timeout: float | None = None
        peer.setblocking(False)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def fileno(self) -> int:
        return self._peer.fileno()

    def pending(self) -> int:
        with self._lock:
            return self._peer.pending()

    def recv(self, size: int) -> bytes:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            with self._lock:
                try:
                    return self._peer.recv(size)
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            self._wait(wanted, deadline)

    def sendall(self, data: bytes) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        left = memoryview(data)
        while left:
            with self._lock:
                try:
                    left = left[self._peer.send(left) :]
                    continue
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            self._wait(wanted, deadline)

    def shutdown(self, how: int) -> None:
        """End the connection below TLS, so that a thread that waits for it wakes up."""
        socket.socket.shutdown(self._peer, how)

    def close(self) -> None:
        self._peer.close()

    def _wait(self, wanted: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._peer, wanted)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poll.poll(left):
            raise TimeoutError("the other side did not answer in time")
