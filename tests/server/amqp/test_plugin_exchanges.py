"""Types of exchanges that RabbitMQ has from plug-ins: delayed, consistent hash, random (S1)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from remuda.core.routing import Exchange
from remuda.model.queues.routing import Binding, ExchangeKind
from tests.server.amqp.kit import Client, eventually, fresh


def _bound(client: Client, exchange: str, kind: str, count: int, key: str = "1", **arguments: Any) -> list[str]:
    client.channel.exchange_declare(exchange, kind, durable=True, arguments=arguments)
    queues = [fresh() for _ in range(count)]
    for name in queues:
        client.channel.queue_declare(name)
        client.channel.queue_bind(name, exchange, key)
    return queues


def test_s1_a_consistent_hash_keeps_a_key_in_one_queue(client: Client) -> None:
    exchange = fresh("hash")
    queues = _bound(client, exchange, "x-consistent-hash", 3)
    for _ in range(2):
        for number in range(60):
            client.publish(f"key-{number}", b"%d" % number, exchange=exchange)
    found = [client.bodies(name) for name in queues]
    assert sum(map(len, found)) == 120
    for bodies in found:
        assert len(set(bodies)) >= 6  # of twenty, if they were spread evenly
        assert all(bodies.count(body) == 2 for body in bodies)


def test_s1_a_consistent_hash_goes_by_a_header(client: Client) -> None:
    exchange = fresh("hash")
    queues = _bound(client, exchange, "x-consistent-hash", 2, **{"hash-header": "customer"})
    for number in range(80):
        client.publish("same", b"%d" % (number % 40), exchange=exchange, headers={"customer": str(number % 40)})
    found = [client.bodies(name) for name in queues]
    assert sum(map(len, found)) == 80
    for bodies in found:
        assert bodies
        assert all(bodies.count(body) == 2 for body in bodies)
    for number in range(3):
        client.publish(f"key-{number}", b"anonymous", exchange=exchange)
    assert sorted(len(client.bodies(name)) for name in queues) == [0, 3]


def test_s1_most_keys_stay_when_a_queue_comes() -> None:
    def places(count: int, weight: str = "1") -> dict[str, str | None]:
        bindings = [Binding(queue=f"q{number}", key="1") for number in range(count - 1)]
        exchange = Exchange(ExchangeKind.CONSISTENT_HASH, [*bindings, Binding(queue="last", key=weight)])
        return {key: next(exchange.matching(key, {})).queue for key in map(str, range(2000))}

    before, after = places(4), places(5)
    moved = [key for key in before if before[key] != after[key] and before[key] != "last"]
    assert len(moved) < 2000 * 0.4
    heavy = list(places(4, "5").values()).count("last")
    assert heavy > 2 * list(before.values()).count("last")
    assert list(Exchange(ExchangeKind.CONSISTENT_HASH).matching("k", {})) == []


def test_s1_a_random_exchange_spreads_messages_that_are_alike(client: Client) -> None:
    exchange = fresh("random")
    queues = _bound(client, exchange, "x-random", 3)
    channel = client.open(confirms=False)
    for _ in range(90):
        channel.basic_publish(exchange, "same", b"x")
    eventually(lambda: sum(map(client.waiting, queues)) == 90)
    assert all(client.waiting(name) >= 10 for name in queues)


def test_s1_a_delayed_message_comes_when_it_is_due(client: Client) -> None:
    exchange = fresh("delayed")
    (name,) = _bound(client, exchange, "x-delayed-message", 1, "a.#", **{"x-delayed-type": "topic"})
    begun = time.monotonic()
    client.publish("a.b", b"late", exchange=exchange, headers={"x-delay": 700})
    client.publish("a.b", b"now", exchange=exchange)
    client.publish("a.b", b"soon", exchange=exchange, headers={"x-delay": 200})
    client.publish("b", b"elsewhere", exchange=exchange, headers={"x-delay": 1})
    assert client.get(name)[2] == b"now"
    assert [client.get(name)[2], client.get(name)[2]] == [b"soon", b"late"]
    assert time.monotonic() - begun >= 0.7
    client.channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("x-delayed-message", {}), ("x-delayed-message", {"x-delayed-type": "x-delayed-message"}),
        ("x-delayed-message", {"x-delayed-type": 5}), ("x-own", {}),
        ("x-consistent-hash", {"hash-header": 5}),
    ],
)  # fmt: skip
def test_s1_what_cannot_be_is_refused(client: Client, kind: str, arguments: dict[str, Any]) -> None:
    assert client.refused(lambda ch: ch.exchange_declare(fresh("x"), kind, arguments=arguments))[0] == 406
