"""Session fixtures for the servers that tests need."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

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


@pytest.fixture(scope="session")
def virtual_hosts(rabbit: RabbitNode) -> Callable[[], str]:
    """Gives the URL of a virtual host that nothing has used yet."""
    ready: list[str] = []
    numbers = itertools.count(1)

    def fresh() -> str:
        if not ready:
            names = [f"t{os.getpid()}-{next(numbers)}" for _ in range(30)]
            rabbit.virtual_hosts(names)
            ready.extend(names)
        return rabbit.url + ready.pop(0)

    return fresh


@pytest.fixture
def fresh_url(virtual_hosts: Callable[[], str]) -> str:
    """The URL of a virtual host of one's own."""
    return virtual_hosts()
