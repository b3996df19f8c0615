"""A web server that answers a byte at a time, and never comes to an end."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def trickling_server(beginning: bytes) -> Iterator[int]:
    """Its port. Each answer is this beginning, and then more of the same line."""
    over = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            for byte in itertools.chain([beginning], itertools.repeat(b"x")):
                peer.sendall(byte)
                if over.wait(0.02):
                    return

    def serve() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                threading.Thread(target=answer, args=listening.accept()[:1], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
