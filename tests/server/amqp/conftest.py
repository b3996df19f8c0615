from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.amqp.kit import Client
from tests.servers.amqpd import RunningServer


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """One server for all tests that need no other; each uses names of its own."""
    with RunningServer(vhosts=("/", "other")) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.url) as connected:
        yield connected
