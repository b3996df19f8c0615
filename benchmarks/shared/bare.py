"""The least that one message at a time can cost: guests that only send and wait, and a host that only writes, syncs
once for all of them, and answers. It knows no queues, no protocol and no recovery, so it bounds whoever has them."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SOCKET: Final = "bare"
_ANSWER: Final = b"kept"
_READ: Final = 1 << 16
_PATIENCE: Final = 120.0
_ROOM: Final = 64 << 20


def bare_guest(directory: Path, body: bytes) -> tuple[Callable[[], int], Callable[[], None]]:
    """Sends one message, and waits until it is kept."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(_PATIENCE)
    peer.connect(str(directory / _SOCKET))

    def step() -> int:
        peer.sendall(body)
        peer.recv(_READ)
        return 1

    return step, peer.close


@contextmanager
def bare_host(directory: Path, guests: int) -> Iterator[None]:
    """Serves that many guests, all of whose messages go with one sync, until they are gone."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(directory / _SOCKET))
    listening.listen(guests)
    listening.settimeout(_PATIENCE)
    thread = threading.Thread(target=_serve, args=(listening, directory / "log", guests), daemon=True)
    thread.start()
    try:
        yield
        thread.join(_PATIENCE)
    finally:
        listening.close()


def _serve(listening: socket.socket, path: Path, guests: int) -> None:
    poll, peers = select.epoll(), dict[int, socket.socket]()
    for _ in range(guests):
        peer, _ = listening.accept()
        peers[peer.fileno()] = peer
        poll.register(peer, select.EPOLLIN)
    log, written = os.open(path, os.O_RDWR | os.O_CREAT), 0
    os.posix_fallocate(log, 0, _ROOM)
    came: dict[int, bytes] = {}
    try:
        while peers:
            for handle, _ in poll.poll(_PATIENCE):
                data = peers[handle].recv(_READ)
                if data:
                    came[handle] = data
                else:
                    poll.unregister(handle)
                    peers.pop(handle).close()
            if came and len(came) == len(peers):
                data = b"".join(came.values())
                os.pwrite(log, data, written % _ROOM)
                os.fdatasync(log)
                written += len(data)
                for handle in came:
                    peers[handle].send(_ANSWER)
                came.clear()
    finally:
        poll.close()
        os.close(log)
