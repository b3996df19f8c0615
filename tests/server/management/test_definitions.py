"""Definitions out and in: what a RabbitMQ exported is taken over, with a list of what could not be (S7)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest
from typer.testing import CliRunner

from remuda.server.users import EVERYTHING, Users, add_user
from tests.server.amqp.kit import Client, eventually
from tests.server.amqp.test_serve import serving
from tests.server.management.kit import managed

DEFINITIONS: dict[str, Any] = {
    "rabbit_version": "3.10.8", "rabbitmq_version": "3.10.8", "product_name": "RabbitMQ", "product_version": "3.10.8",
    "users": [
        {
            "name": "tom", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ["administrator", "vip"], "limits": {},
        },
        {"name": "old", "password_hash": "AAAA", "hashing_algorithm": "rabbit_password_hashing_md5", "tags": ""},
    ],
    "vhosts": [{"name": "/"}, {"name": "shop"}],
    "permissions": [{"user": "tom", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "tom", "vhost": "shop", "exchange": "amq.topic", "write": "^a", "read": "^a"}],
    "parameters": [
        {"component": "shovel", "vhost": "/", "name": "far", "value": {"src-uri": "amqp://far"}},
        {"component": "federation-upstream", "vhost": "/", "name": "up", "value": {"uri": "amqp://far"}},
    ],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
    "policies": [
        {
            "vhost": "shop", "name": "ttl", "pattern": "^orders", "apply-to": "queues",
            "definition": {"message-ttl": 60000, "ha-mode": "all", "federation-upstream-set": "all"}, "priority": 3,
        },
        {
            "vhost": "shop", "name": "odd", "pattern": "x", "apply-to": "queues", "definition": {"own": 1},
            "priority": 0,
        },
    ],
    "queues": [
        {"name": "orders", "vhost": "shop", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 10}},
        {
            "name": "events", "vhost": "shop", "durable": True, "auto_delete": False,
            "arguments": {"x-queue-type": "stream"},
        },
    ],
    "exchanges": [
        {
            "name": "ev", "vhost": "shop", "type": "topic", "durable": True, "auto_delete": False, "internal": False,
            "arguments": {},
        },
        {
            "name": "odd", "vhost": "shop", "type": "x-own", "durable": True, "auto_delete": False, "internal": False,
            "arguments": {},
        },
    ],
    "bindings": [
        {
            "source": "ev", "vhost": "shop", "destination": "orders", "destination_type": "queue",
            "routing_key": "order.#", "arguments": {},
        },
        {
            "source": "ev", "vhost": "shop", "destination": "none", "destination_type": "queue", "routing_key": "x",
            "arguments": {},
        },
    ],
}  # fmt: skip
"""In the shape in which RabbitMQ 3.10 writes it."""
MISSED = (
    "tag 'vip' of user 'tom'", "user 'old'", "exchange 'odd'", "binding 'ev'", "policy 'odd'",
    "ha-mode of policy 'ttl'", "federation-upstream-set of policy 'ttl'",
    "parameter 'far'", "parameter 'up'", "topic permission of 'tom'",
)  # fmt: skip


@pytest.fixture
def users(tmp_path: Path) -> Users:
    add_user(tmp_path / "users.toml", "guest", "guest-guest", {"/": EVERYTHING}, tags=["administrator"])
    return Users.load(tmp_path / "users.toml")


def test_s7_definitions_of_rabbitmq_by_request(users: Users) -> None:
    with managed(users=users) as site:
        site.client.auth = ("guest", "guest-guest")
        answer = site.client.post("definitions", json=DEFINITIONS)
        assert answer.status_code == 200, answer.text
        missed = answer.json()["not_imported"]
        for what in MISSED:
            assert any(one.startswith(what) for one in missed), (what, missed)
        with Client(site.amqp("shop", "tom:test12")) as tom:
            tom.publish("order.new", b"1", exchange="ev")
            assert tom.waiting("orders") == 1
        assert site.status("PUT", "permissions/shop/guest", EVERYTHING) == 201
        assert site.get("queues/shop/orders")["policy"] == "ttl"
        options = site.running.broker.queue("vhost:shop/orders").options
        assert (options.message_timeout, options.message_limit) == (60_000_000, 10)
        exported = site.get("definitions")
        again = site.client.post("definitions", json=exported)
        assert again.status_code in (200, 204)
        assert "not_imported" not in (again.json() if again.content else {}) or all(
            "no meaning" in one for one in again.json()["not_imported"]
        )
        assert site.get("definitions") == exported
        assert {one["name"] for one in site.get("definitions/shop")["queues"]} >= {"orders"}
    # Elsewhere it is the same, passwords included.
    assert {queue["name"] for queue in exported["queues"]} >= {"orders"}


def test_s7_at_the_start_with_the_first_user_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "definitions.json").write_text(json.dumps(DEFINITIONS))
    (tmp_path / "secret").write_text("correct horse\n")
    (tmp_path / "server.toml").write_text(
        f'[serve]\ndefinitions = "{tmp_path}/definitions.json"\nwire = "none"\nheartbeat = 7\n'
        'vhost = ["a/b"]\nmanagement = "127.0.0.1:0"\n'
    )
    environment = {
        "REMUDA_DEFAULT_USER": "ann", "REMUDA_DEFAULT_PASS_FILE": str(tmp_path / "secret"),
        "REMUDA_DEFAULT_VHOST": "first", "REMUDA_CONFIG": str(tmp_path / "server.toml"), "REMUDA_MAX_CHANNELS": "9",
        "REMUDA_LOG_FORMAT": "json",
    }  # fmt: skip
    with serving(tmp_path / "data", **environment) as served:
        base = served.url.removeprefix("amqp://")
        for login in ("ann:correct%20horse", "tom:test12"):
            vhost = "first" if login.startswith("ann") else "shop"
            with Client(f"amqp://{login}@{base}/{vhost}") as client:
                client.channel.queue_declare(f"of-{vhost}", durable=True)
                agreed = client.connection._impl.params
                assert (agreed.heartbeat, agreed.channel_max) == (7, 9)
        assert " and http://127.0.0.1:" in served.line
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            Client(f"amqp://eve:wrong@{base}/first")
        served.process.send_signal(signal.SIGTERM)
        _, log = served.process.communicate(timeout=60)
    lines = [json.loads(line) for line in log.splitlines()]
    told = {one["message"].partition(") ")[2]: one for one in lines if "connection" in one}
    assert {"entered vhost 'first'", "entered vhost 'shop'", "has ended"} <= set(told)
    assert {one["user"] for one in lines if "connection" in one} == {"ann", "tom", "eve"}
    assert told["entered vhost 'first'"]["peer"].startswith("127.0.0.1:")
    assert [one["level"] for one in lines if one.get("user") == "eve"] == ["warning"]


def test_s7_settings_that_make_no_sense_are_refused_where_they_are(tmp_path: Path) -> None:
    from remuda.cli.app import app

    for content, why in (
        ("[serve]\nlisten_to = 'x'", "line 2: unknown option 'listen_to'; did you mean 'listen'"),
        ("serve = 5", "must be a table"),
        ("[serve", "is not valid TOML"),
        ("[serve]\nheartbeat = 1.5", "heartbeat cannot be 1.5"),
    ):
        (tmp_path / "server.toml").write_text(content)
        result = CliRunner().invoke(
            app, ["serve", "--data", str(tmp_path / "d"), "--config", str(tmp_path / "server.toml")]
        )
        assert result.exit_code != 0
        assert why in str(result.exception or result.output) + result.output, content
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "d")], env={"REMUDA_DEFAULT_USER": "ann"})
    assert "needs a password: set REMUDA_DEFAULT_PASS" in str(result.exception) + result.output
    assert not (tmp_path / "d").exists()


def test_s7_sighup_reads_limits_again(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text('[serve]\nwire = "none"\nheartbeat = 7\nmax-channels = 11\n')
    environment = {"REMUDA_CONFIG": str(config), "REMUDA_MAX_CHANNELS": "9"}
    with serving(tmp_path / "data", **environment) as served:

        def agreed() -> tuple[int, int]:
            with Client(f"{served.url}/") as client:
                found = client.connection._impl.params
                return found.heartbeat, found.channel_max

        assert agreed() == (7, 9)
        config.write_text('[serve]\nheartbeat = "often"\n')
        served.process.send_signal(signal.SIGHUP)
        config.write_text("[serve]\nheartbeat = 5\nmax-channels = 3\n")
        served.process.send_signal(signal.SIGHUP)
        eventually(lambda: agreed() == (5, 9))  # what the environment gave stays
        assert served.process.poll() is None
