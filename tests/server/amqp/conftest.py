from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clients that a server turns away leave their sockets to the collector, which complains in whatever test is on."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """What clients left is collected here, and not in somebody else's test."""
    yield
    gc.collect()
