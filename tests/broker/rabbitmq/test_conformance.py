"""The broker on RabbitMQ passes the suite, save for what its table refuses (docs/rabbitmq.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from remuda.broker.opening import open_async_broker, open_broker
from remuda.broker.port import AsyncBroker, Broker
from tests.conformance import asyncio_face, delivery, events, life, limits, publishing, queues, settling, topics
from tests.conformance.kit import Backend


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


@pytest.fixture
def backend(clean_url: str, request: pytest.FixtureRequest) -> Iterator[Backend]:
    classic = any(word in request.node.name for word in CLASSIC)
    place = Rabbit(clean_url + ("?queue_type=classic" if classic else ""))
    yield place
    place.close()


class TestPublishing(publishing.Publishing):
    pass


class TestOptions(queues.Options):
    pass


class TestCreation(queues.Creation):
    pass


class TestStatuses(queues.Statuses):
    pass


class TestConsumers(queues.Consumers):
    pass


class TestAutoDestroy(queues.AutoDestroy):
    pass


class TestClosing(queues.Closing):
    pass


class TestPush(delivery.Push):
    pass


class TestRoundRobin(delivery.RoundRobin):
    pass


class TestPull(delivery.Pull):
    pass


class TestOrder(delivery.Order):
    pass


class TestPace(delivery.Pace):
    pass


class TestTimeouts(settling.Timeouts):
    pass


class TestPutBack(settling.PutBack):
    pass


class TestAnswers(settling.Answers):
    pass


class TestCommits(settling.Commits):
    pass


class TestConfirmations(settling.Confirmations):
    pass


class TestExpiry(limits.Expiry):
    pass


class TestMessageLimit(limits.MessageLimit):
    pass


class TestSizeLimit(limits.SizeLimit):
    pass


class TestUniqueIds(limits.UniqueIds):
    pass


class TestTopics(topics.Topics):
    pass


class TestChannels(topics.Channels):
    pass


class TestCompacter(topics.Compacter):
    pass


class TestRouters(topics.Routers):
    pass


class TestStates(life.States):
    pass


class TestOperators(life.Operators):
    pass


class TestDocuments(life.Documents):
    pass


class TestPersistence(life.Persistence):
    pass


class TestSpectators(life.Spectators):
    pass


class TestEvents(events.Events):
    pass


class TestAsyncFace(asyncio_face.AsyncFace):
    pass
