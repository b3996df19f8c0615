"""The shop's dashboard, served while the day is played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from remuda import Bus
from remuda.model.errors import RemudaError
from remuda.server.http import mounting
from remuda.server.http.serving import DEFAULT, Server, read_listen


@contextmanager
def dashboard(bus: Bus, lake: Path) -> Iterator[str]:
    """Serve the dashboard on its usual port, or on a free one; gives its address."""
    page = mounting.dashboard(bus, lake=str(lake))
    try:
        server = Server(page, read_listen(DEFAULT))
    except RemudaError:
        server = Server(page, read_listen("127.0.0.1:0"))
    server.start()
    try:
        yield server.address
    finally:
        server.stop()
