"""What an operator does from the command line, on RabbitMQ (B15, U3)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from remuda import Bus
from tests.cli.kit import Remuda


@pytest.fixture
def shop(broker_url: str) -> Iterator[tuple[str, str, list[str]]]:
    """A queue with two dead letters and one message that waits: URL, queue, ids of the dead ones."""
    queue, url = f"shop-{time.time_ns()}", f"{broker_url}?log=log-{time.time_ns()}"
    with Bus(url) as bus:

        @bus.subscribe(queue, queue=queue, retry=0)
        def ship(order: dict[str, int]) -> None:
            raise ValueError("no stock")

        dead = [bus.publish(queue, {"id": number}) for number in range(2)]
        bus.run(until_idle=True)
    with Bus(url) as bus:  # whose workers do not hold what waits
        bus.publish(queue, {"id": 7})
        bus.broker.create_queue(f"{queue}-by-hand")
        yield url, queue, dead
        bus.broker.remove_queue(f"{queue}-by-hand")
        bus.broker.remove_queue(queue)


def row(remuda: Remuda, url: str, queue: str) -> dict[str, object]:
    return next(one for one in remuda("queues", url, "--json").value if one["queue"] == queue)


def test_b15_dead_letters_are_seen_and_sent_back(remuda: Remuda, shop: tuple[str, str, list[str]]) -> None:
    url, queue, dead = shop
    seen = row(remuda, url, queue)
    assert (seen["waiting"], seen["dead"]) == (1, 2)
    assert {seen[name] for name in ("inFlight", "delayed", "done")} == {None}, "which only those who handle them know"
    listed = remuda("messages", url, queue, "--state", "dead", "--json").value
    assert {one["id"] for one in listed} == set(dead)
    assert {(one["reason"], one["attempts"]) for one in listed} == {("ValueError: no stock", 1)}
    assert "2 messages back" in remuda("reprocess", url, queue, "--reason", "no stock", "--who", "ann").out
    seen = row(remuda, url, queue)
    assert (seen["waiting"], seen["dead"]) == (3, 0)
    assert "waiting: reprocessed (by ann)" in remuda("message", url, dead[0]).out


def test_b15_a_queue_is_paused_moved_cleared_and_forgotten(remuda: Remuda, shop: tuple[str, str, list[str]]) -> None:
    url, queue, _ = shop
    said = remuda("pause", url, queue).out
    assert "guest:guest" not in said
    assert "is paused" in said
    assert row(remuda, url, queue)["status"] == "only-publish"
    remuda("resume", url, queue)
    assert row(remuda, url, queue)["status"] == "running"
    assert "1 message moved" in remuda("move", url, queue, f"{queue}-by-hand").out
    assert "1 message cleared" in remuda("clear", url, f"{queue}-by-hand", "--yes").out
    assert "1 dead letter" in remuda("forget", url, f"{queue}-by-hand", "--yes").out
    assert row(remuda, url, f"{queue}-by-hand")["dead"] == 0


def test_u3_what_rabbitmq_does_not_show_is_said(remuda: Remuda, shop: tuple[str, str, list[str]]) -> None:
    """An empty list would look as if nothing waited."""
    url, queue, dead = shop
    refused = remuda("messages", url, queue, "--state", "waiting", code=1)
    assert "--state waiting needs a directory" in refused.err
    assert "guest:guest" not in refused.err
    listed = remuda("messages", url, queue)
    assert "1 more are waiting or running" in listed.err
    assert all(id in listed.out for id in dead)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace(":guest@", ":wrong@"), "refused the login"),
        (lambda url: f"{url}no-such-vhost", "vhost no-such-vhost not found"),
        (lambda url: f"{url}?nonsense=1", "unknown option 'nonsense'"),
    ],
)
@pytest.mark.parametrize("command", [("queues",), ("messages", "q"), ("reprocess", "q"), ("pause", "q")])
def test_u3_a_wrong_url_is_one_clear_line(
    remuda: Remuda, broker_url: str, command: tuple[str, ...], change: object, said: str
) -> None:
    assert callable(change)
    name, *rest = command
    refused = remuda(name, change(broker_url), *rest, code=1)
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert len(refused.err.strip().splitlines()) == 1
