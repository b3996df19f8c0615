"""Session fixtures for the servers that tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.rabbitmq import Janitor, RabbitNode, end_node, start_node


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitNode]:
    """A running RabbitMQ. A test that stops it starts it again."""
    node = start_node()
    yield node
    end_node(node)


@pytest.fixture
def broker_url(rabbit: RabbitNode) -> str:
    return rabbit.url


@pytest.fixture(scope="session")
def janitor(rabbit: RabbitNode) -> Iterator[Janitor]:
    janitor = Janitor(rabbit.url)
    yield janitor
    janitor.close()


@pytest.fixture
def clean_url(rabbit: RabbitNode, janitor: Janitor) -> Iterator[str]:
    """The URL of a RabbitMQ on which no broker of ours has left anything; what the test leaves is wiped away."""
    janitor.wipe(used=False)
    yield rabbit.url
    janitor.wipe()
