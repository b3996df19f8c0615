"""Policies: limits, times to live and dead letters for all queues of a pattern, applied while they are in use (S7)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.server.amqp.kit import Client, eventually, fresh
from tests.server.management.kit import Managed, managed


@pytest.fixture(scope="module")
def site() -> Iterator[Managed]:
    with managed() as running:
        yield running


@pytest.fixture
def client(site: Managed) -> Iterator[Client]:
    with Client(site.amqp()) as connected:
        yield connected


def _policy(site: Managed, name: str, pattern: str, priority: int = 0, **definition: object) -> None:
    body = {
        "pattern": pattern, "priority": priority, "apply-to": "queues",
        "definition": {setting.replace("_", "-"): value for setting, value in definition.items()},
    }  # fmt: skip
    assert site.status("PUT", f"policies/%2F/{name}", body) in (201, 204)


def test_s7_a_policy_counts_for_queues_that_exist(site: Managed, client: Client) -> None:
    name = fresh("limited")
    client.channel.queue_declare(name, arguments={"x-max-length": 3})
    client.publish(name, b"1")
    _policy(site, "limit", "^limited", max_length=2, overflow="drop-head")
    for body in (b"2", b"3", b"4"):
        client.publish(name, body)
    assert client.bodies(name) == [b"3", b"4"]
    # Declared again as it was: a policy is no part of the declaration.
    client.channel.queue_declare(name, arguments={"x-max-length": 3})
    assert site.get(f"queues/%2F/{name}")["effective_policy_definition"] == {"max-length": 2, "overflow": "drop-head"}
    _policy(site, "more", "^limited", 5, max_length=9)  # of two limits, the lower one counts
    assert site.get(f"queues/%2F/{name}")["policy"] == "more"
    client.publish(name, *(b"%d" % number for number in range(5)))
    assert client.bodies(name) == [b"2", b"3", b"4"]
    for policy in ("limit", "more"):
        assert site.status("DELETE", f"policies/%2F/{policy}") == 204
    assert site.status("DELETE", "policies/%2F/more") == 404
    assert site.get(f"queues/%2F/{name}")["policy"] is None


def test_s7_dead_letters_by_policy(site: Managed, client: Client) -> None:
    name, late, exchange = fresh("dead"), fresh("late"), fresh("dlx")
    client.channel.exchange_declare(exchange, "fanout")
    client.channel.queue_declare(late)
    client.channel.queue_bind(late, exchange)
    client.channel.queue_declare(name)
    _policy(site, "dead", "^dead-", message_ttl=1, dead_letter_exchange=exchange)
    client.publish(name, b"late")
    _, properties, body = client.get(late)
    assert (body, properties.headers["x-first-death-queue"]) == (b"late", name)
    site.status("DELETE", "policies/%2F/dead")
    client.publish(name, b"stays")
    assert client.bodies(name) == [b"stays"]
    assert client.waiting(late) == 0


def test_s7_a_policy_lasts_and_counts_for_new_queues(tmp_path: object) -> None:
    url = f"{tmp_path}/data"
    with managed(url) as site:
        _policy(site, "short", "^short", message_ttl=1)
    with managed(url) as site, Client(site.amqp()) as client:
        assert [one["name"] for one in site.get("policies/%2F")] == ["short"]
        name = fresh("short")
        client.channel.queue_declare(name, durable=True)
        client.publish(name, b"gone")
        eventually(lambda: client.waiting(name) == 0)


def _is_empty(client: Client, name: str) -> bool:
    return client.waiting(name) == 0


def test_s7_dead_messages_are_kept_or_dropped_as_the_queue_says(site: Managed, client: Client) -> None:
    kept, dropped = fresh("kept"), fresh("dropped")
    client.channel.queue_declare(kept)
    client.channel.queue_declare(dropped, arguments={"x-remuda-dead": "drop"})
    for name in (kept, dropped):
        client.publish(name, b"1", expiration="1")
        eventually(partial(_is_empty, client, name))
        client.publish(name, b"2")
        method, _, _ = client.get(name, ack=False)
        client.channel.basic_reject(method.delivery_tag, requeue=False)
    broker = site.running.broker
    eventually(lambda: broker.queue(kept).dead == 2)
    eventually(lambda: broker.queue(dropped).dead == 0)
    assert client.refused(lambda ch: ch.queue_declare(fresh(), arguments={"x-remuda-dead": "burn"}))[0] == 406
