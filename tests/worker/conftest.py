"""Queues of their own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remuda.amqp.client.connection import Connection
from remuda.worker import QueueType
from tests.worker.kit import Stage


@pytest.fixture(params=list(QueueType))
def stage(request: pytest.FixtureRequest, broker_url: str) -> Iterator[Stage]:
    """Queues of either type."""
    with Connection(broker_url) as connection:
        yield Stage(broker_url, connection.channel(confirms=True), request.param)


@pytest.fixture
def quorum(broker_url: str) -> Iterator[Stage]:
    with Connection(broker_url) as connection:
        yield Stage(broker_url, connection.channel(confirms=True), QueueType.QUORUM)


@pytest.fixture
def classic(broker_url: str) -> Iterator[Stage]:
    with Connection(broker_url) as connection:
        yield Stage(broker_url, connection.channel(confirms=True), QueueType.CLASSIC)
