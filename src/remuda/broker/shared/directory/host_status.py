"""Which process hosts a directory, and whether it answers; seen from outside, without opening the directory."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Final

from remuda.broker.shared.directory.host_lock import is_held
from remuda.broker.shared.wire import sockets, wire_frames
from remuda.log.disk.directory import DirectoryDisk

_PATIENCE: Final = 3.0


def holder_of(path: Path) -> int | None:
    """The process that holds a directory; None if there is none, 0 if it cannot be seen from here."""
    if not is_held(path):
        return None
    try:
        with sockets.connect(path) as peer:
            known = sockets.peer_of(peer)
            if known is not None:
                return known[0]
    except OSError:
        pass
    noted = DirectoryDisk(path, create=False).holder().pid
    try:
        os.kill(noted, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass
    return noted


def answers(path: Path, patience: float = _PATIENCE) -> bool:
    """Whether the host of a directory says hello."""
    try:
        with sockets.connect(path) as peer:
            peer.settimeout(patience)
            token = secrets.token_hex(12)
            peer.sendall(
                wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(wire_frames.VERSION, token, os.getpid()))
            )
            answered = bool(peer.recv(1))
            peer.sendall(wire_frames.frame(wire_frames.GOODBYE, None))
            return answered
    except OSError:
        return False


def wait_for_change(path: Path, pid: int, seconds: float = 10.0) -> int | None:
    """The process that holds the directory once `pid` no longer does; None if none took it within a moment."""
    deadline, free_since = time.monotonic() + seconds, 0.0
    while time.monotonic() < deadline:
        now = holder_of(path)
        if now is None:
            free_since = free_since or time.monotonic()
            if time.monotonic() - free_since > 1.0:
                return None
        elif now not in (pid, 0):
            return now
        time.sleep(0.02)
    return None
