"""Ports for servers that must be told theirs before they start."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_chance = random.Random(os.urandom(8))
_given: set[int] = set()


def free_port() -> int:
    """A port that is still free when the server comes to it.

    One that the system picks may be given to any connection until then, as a server takes seconds to start. So it is
    none of those that the system gives away, and each process of a test run has its own among the others.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(_LOWEST + process % processes, _highest(), processes)
    while True:
        port = _chance.choice(ports)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _highest() -> int:
    """Below what connections are given."""
    try:
        lowest = int(_RANGE.read_text().split()[0])
    except OSError:
        lowest = 49_152
    return lowest if lowest > _LOWEST + 1000 else 65_536


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
