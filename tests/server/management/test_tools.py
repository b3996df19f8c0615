"""Real tools against the management API: rabbitmqadmin, Flower, and KEDA's and celery-exporter's questions (S7)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from tests.server.amqp.kit import Client, eventually, fresh
from tests.server.management.kit import Managed, managed, rabbitmqadmin


@pytest.fixture(scope="module")
def site() -> Iterator[Managed]:
    with managed() as running:
        yield running


@pytest.fixture(scope="module")
def command() -> str:
    found = rabbitmqadmin()
    if found is None:
        pytest.skip("rabbitmqadmin is not installed; it comes with RabbitMQ's management plug-in")
    return found


def _run(command: str, site: Managed, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, command, "-H", "127.0.0.1", "-P", str(site.port), *arguments],
        input=stdin, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_s7_rabbitmqadmin(site: Managed, command: str, tmp_path: Path) -> None:
    def run(*arguments: str, stdin: str = "") -> str:
        return _run(command, site, *arguments, stdin=stdin)

    assert "queue declared" in run("declare", "queue", "name=mail", "durable=true", 'arguments={"x-max-length":9}')
    assert "exchange declared" in run("declare", "exchange", "name=post", "type=topic")
    assert "binding declared" in run("declare", "binding", "source=post", "destination=mail", "routing_key=a.#")
    assert "policy declared" in run(
        "declare", "policy", "name=short", "pattern=^mail", 'definition={"message-ttl":100000}', "apply-to=queues"
    )
    assert "Message published" in run("publish", "exchange=post", "routing_key=a.b", "payload=hello")
    assert "NOT routed" in run("publish", "exchange=post", "routing_key=b", stdin="from stdin")
    assert json.loads(run("-f", "raw_json", "list", "queues", "name", "messages")) == [{"name": "mail", "messages": 1}]
    assert "hello" in run("get", "queue=mail", "ackmode=ack_requeue_true")
    assert "| mail " in run("list", "queues")
    for what in (
        "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions",
        "nodes", "parameters", "policies", "operator_policies", "vhost_limits",
    ):  # fmt: skip
        run("list", what)
        run("-d", "3", "-f", "long", "list", what)
    assert "3.13.7" in run("show", "overview")
    assert "mail" in run("-S", "messages", "-R", "list", "queues", "vhost", "name", "message_stats.publish")
    run("export", str(tmp_path / "all.json"))
    for what in ("queue name=mail", "exchange name=post", "policy name=short"):
        run("delete", *what.split())
    assert run("-f", "tsv", "-q", "list", "queues", "name") == ""
    assert "Uploaded" in run("import", str(tmp_path / "all.json"))
    assert run("-f", "tsv", "-q", "list", "queues", "name").split() == ["mail"]
    assert run("-f", "tsv", "-q", "list", "policies", "name").split() == ["short"]
    run("publish", "exchange=post", "routing_key=a.b", "payload=again")
    assert "queue purged" in run("purge", "queue", "name=mail")
    run("delete", "binding", "source=post", "destination_type=queue", "destination=mail", "properties_key=a.%23")
    assert "post" not in run("-f", "tsv", "-q", "list", "bindings", "source")
    run("declare", "vhost", "name=a/b")
    assert "a/b" in run("list", "vhosts")
    client = Client(site.amqp())
    name = json.loads(run("-f", "raw_json", "list", "connections", "name"))[0]["name"]
    run("close", "connection", f"name={name}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        eventually(lambda: client.connection.process_data_events(0.05))


def test_s7_flower_shows_the_queues(site: Managed) -> None:
    """Flower asks with a class of its own for its broker page."""
    pytest.importorskip("flower")
    from flower.utils.broker import Broker  # type: ignore[import-untyped]

    name = fresh("celery")
    with Client(site.amqp()) as client:
        client.channel.queue_declare(name)
        client.publish(name, b"1", b"2")

    async def asked() -> Any:
        broker = Broker(site.amqp("/"), http_api=f"http://guest:guest@127.0.0.1:{site.port}/api/")
        return await broker.queues([name])

    (queue,) = asyncio.run(asked())
    shown = {member: queue[member] for member in ("name", "messages", "messages_unacknowledged", "messages_ready")}
    assert shown == {"name": name, "messages": 2, "messages_unacknowledged": 0, "messages_ready": 2}
    assert queue["consumers"] == 0
    assert "idle_since" in queue
