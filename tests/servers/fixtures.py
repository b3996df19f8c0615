"""Session fixtures for the servers that tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.rabbitmq import RabbitNode, end_node, start_node


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitNode]:
    """A running RabbitMQ. A test that stops it starts it again."""
    node = start_node()
    yield node
    end_node(node)


@pytest.fixture
def broker_url(rabbit: RabbitNode) -> str:
    return rabbit.url
