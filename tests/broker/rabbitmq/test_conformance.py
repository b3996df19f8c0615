"""The broker on RabbitMQ passes the suite, save for what its table refuses (docs/rabbitmq.md)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from remuda.broker.opening import open_async_broker, open_broker
from remuda.broker.port import AsyncBroker, Broker
from tests.conformance.kit import Backend
from tests.conformance.suite import suite


class Rabbit:
    """Brokers in one virtual host. Opening again finds what was left there."""

    durable = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[Broker] = []

    def open(self, **options: Any) -> Broker:
        broker: Broker = open_broker(self._url, **options)
        self._opened.append(broker)
        return broker

    async def open_async(self, **options: Any) -> AsyncBroker:
        return await open_async_broker(self._url, **options)

    def close(self) -> None:
        for broker in self._opened:
            broker.close()


CLASSIC = ("priorit", "test_m2_a_batch_may_differ", "clear", "q15", "high", "q17_memory", "remains")
"""In the names of tests that need priorities, which quorum queues of RabbitMQ 3 do not have."""


LOOKS = ("state_of", "view(", "message(", "spectate", "states_of", "document", "history", "flush")
"""In tests that look into the event log. The others do without, since a stream takes RabbitMQ a while to make; one that
is missing here fails."""


@pytest.fixture
def backend(clean_url: str, request: pytest.FixtureRequest) -> Iterator[Backend]:
    asked = ["queue_type=classic"] if any(word in request.node.name for word in CLASSIC) else []
    if not any(word in inspect.getsource(request.function) for word in LOOKS):
        asked.append("log=no")
    place = Rabbit(clean_url + ("?" + "&".join(asked) if asked else ""))
    yield place
    place.close()


globals().update(suite(__name__))
