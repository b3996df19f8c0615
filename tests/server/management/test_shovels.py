"""Shovels between this server, others of its kind, and RabbitMQ (S7)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from remuda import Message, open_broker
from remuda.server.wire import serve_wire
from tests.server.amqp.kit import Client, eventually, fresh
from tests.server.amqp.test_serve import Served, serving
from tests.server.management.kit import Managed, managed
from tests.servers.amqpd import RunningServer
from tests.servers.ports import free_port
from tests.servers.rabbitmq import RabbitNode


@pytest.fixture(scope="module")
def site() -> Iterator[Managed]:
    with managed() as running:
        yield running


@pytest.fixture
def upstream() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


def put(site: Managed, name: str, vhost: str = "%2F", **value: Any) -> int:
    path = f"parameters/shovel/{vhost}/{quote(name, safe='')}"
    return site.status("PUT", path, {"value": {key.replace("_", "-"): one for key, one in value.items()}})


def state_of(site: Managed, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in site.get("shovels") if one["name"] == name)
    return found


def _with_reason(site: Managed) -> dict[str, Any] | None:
    shown = state_of(site, "s")
    return shown if "reason" in shown else None


def test_s7_a_queue_is_moved_with_everything_that_its_messages_have(site: Managed, upstream: RunningServer) -> None:
    name = fresh("mail")
    with Client(upstream.url) as there, Client(site.amqp()) as here:
        there.channel.queue_declare(name, durable=True)
        there.publish(name, b"one", headers={"a": [1, None]}, message_id="m1", priority=3, content_type="text/x")
        assert put(site, name, src_uri=upstream.url, src_queue=name, dest_uri="amqp://", dest_queue=f"{name}-in") == 201
        eventually(lambda: state_of(site, name)["state"] == "running")
        there.publish(name, b"two")
        _, properties, body = here.get(f"{name}-in")
        assert (body, properties.headers, properties.message_id) == (b"one", {"a": [1, None]}, "m1")
        assert (properties.priority, properties.content_type) == (3, "text/x")
        assert here.get(f"{name}-in")[2] == b"two"
        eventually(lambda: state_of(site, name)["messages_moved"] == 2)
        assert there.waiting(name) == 0
        assert put(site, name, src_uri=upstream.url, src_queue=name, dest_uri="amqp://", dest_queue=f"{name}-in") == 204
        assert site.status("DELETE", f"parameters/shovel/%2F/{name}") == 204
        assert site.status("DELETE", f"parameters/shovel/%2F/{name}") == 404
        there.publish(name, b"stays")
        assert there.bodies(name) == [b"stays"]


def test_s7_an_exchange_is_followed_by_a_queue_that_collects(site: Managed, upstream: RunningServer) -> None:
    name = fresh("news")
    with Client(upstream.url) as there, Client(site.amqp()) as here:
        there.channel.exchange_declare(name, "topic", durable=True)
        here.channel.exchange_declare(name, "fanout", durable=True)
        here.channel.queue_declare(name)
        here.channel.queue_bind(name, name)
        more = {"src_uri": upstream.url, "src_exchange": name, "src_exchange_key": "sport.#"}
        assert put(site, name, **more, dest_uri="amqp://", dest_exchange=name) == 201
        eventually(lambda: state_of(site, name)["state"] == "running")
        for key in ("sport.football", "politics", "sport"):
            there.channel.basic_publish(name, key, key.encode())
        got = [here.get(name) for _ in range(2)]
        assert [(method.routing_key, body) for method, _, body in got] == [
            ("sport.football", b"sport.football"), ("sport", b"sport"),
        ]  # fmt: skip
        assert site.status("DELETE", f"parameters/shovel/%2F/{name}") == 204
        assert there.refused(lambda channel: channel.queue_declare(f"shovel.{name}", passive=True))[0] == 404


def test_s7_a_shovel_survives_the_loss_of_its_upstream(tmp_path: Path, site: Managed) -> None:
    name = fresh("lost")
    broker = open_broker(tmp_path / "up")
    with RunningServer(broker=broker) as first:
        with Client(first.url) as there:
            there.channel.queue_declare(name, durable=True)
            there.publish(name, *(b"%d" % number for number in range(50)))
        url = first.url
        assert put(
            site, name, src_uri=url, src_queue=name, dest_uri="amqp://", dest_queue=name, reconnect_delay=0.1
        ) == 201  # fmt: skip
        eventually(lambda: state_of(site, name)["messages_moved"] == 50)
    eventually(lambda: state_of(site, name)["state"] != "running")
    broker.close()
    with open_broker(tmp_path / "up") as again, RunningServer(broker=again) as second:
        with Client(second.url) as there:
            there.publish(name, b"after")
        value = {"src_uri": second.url, "src_queue": name, "dest_uri": "amqp://", "dest_queue": name}
        assert put(site, name, **value) == 204
        eventually(lambda: state_of(site, name)["messages_moved"] == 1)
    with Client(site.amqp()) as here:
        assert here.bodies(name) == [b"%d" % number for number in range(50)] + [b"after"]
    site.status("DELETE", f"parameters/shovel/%2F/{name}")


def test_s7_between_two_of_remuda_each_message_arrives_once(tmp_path: Path) -> None:
    """Either end is killed again and again while it hands over or stores."""
    ids = [f"order-{number}" for number in range(2000)]
    with open_broker(tmp_path / "up") as broker:
        broker.create_queue("orders")
        broker.publish([Message("orders", b"%d" % row, id=own) for row, own in enumerate(ids)], queue="orders")
    wire, amqp, management = free_port(), free_port(), free_port()

    def start(end: str) -> Served:
        if end == "up":
            return stack.enter_context(serving(tmp_path / "up", "--wire", f"127.0.0.1:{wire}"))
        more = ("--wire", "none", "--management", f"127.0.0.1:{management}")
        return stack.enter_context(serving(tmp_path / "down", *more, listen=f"127.0.0.1:{amqp}"))

    value = {
        "src-uri": f"remuda://127.0.0.1:{wire}", "src-queue": "orders", "dest-queue": "orders-in",
        "src-prefetch-count": 20, "reconnect-delay": 0.1,
    }  # fmt: skip
    api = httpx.Client(base_url=f"http://127.0.0.1:{management}/api/", auth=("guest", "guest"), timeout=60)

    def moved() -> int:
        return int(api.get("queues/%2F/orders-in").json().get("messages", 0))

    def further(by: int) -> None:
        enough = min(moved() + by, len(ids))
        eventually(lambda: moved() >= enough)

    with api, contextlib.ExitStack() as stack:
        ends = {end: start(end) for end in ("up", "down")}
        assert api.put("parameters/shovel/%2F/orders", json={"value": value}).status_code == 201
        eventually(lambda: api.get("queues/%2F/orders-in").status_code == 200)
        for end in ("up", "down", "down", "up", "up", "down"):
            further(150)
            ends[end].process.kill()
            ends[end].process.wait()
            ends[end] = start(end)
        eventually(lambda: moved() >= len(ids))
        upstream = open_broker(f"remuda://127.0.0.1:{wire}")
        eventually(lambda: upstream.queue("orders").size == 0)
        upstream.close()
    with open_broker(tmp_path / "down") as broker:
        taken = broker.pull("orders-in", 3000)
        assert taken is not None
        assert sorted(message.id for message in taken) == sorted(ids)


def test_s7_the_topics_of_a_bus_are_followed(site: Managed) -> None:
    name = fresh("topics")
    with open_broker("memory://") as broker, serve_wire(broker, ("127.0.0.1", 0)) as wire:
        more = {"src_uri": wire.url, "src_exchange": "remuda.topics", "src_exchange_key": "order.*"}
        assert put(site, name, **more, dest_queue=name) == 201
        eventually(lambda: state_of(site, name)["state"] == "running")
        broker.publish([Message("order.placed", b"7", headers={"who": "ann"}), Message("other", b"8")])
        with Client(site.amqp()) as here:
            assert here.get(name)[2] == b"7"
        site.status("DELETE", f"parameters/shovel/%2F/{name}")
        assert f"shovel.{name}" not in [one.name for one in broker.queues()]


def test_s7_two_directories_that_follow_each_other_have_each_message_once() -> None:
    """What came from the other one goes no further: it would circle for ever."""
    with managed() as one, managed() as other:
        pairs = ((one, other), (other, one))
        wires = {site: serve_wire(site.running.broker, ("127.0.0.1", 0)) for site in (one, other)}
        for site, there in pairs:
            site.running.broker.create_queue("seen", patterns=["news.#"])
            more = {"src_uri": wires[there].url, "src_exchange": "remuda.topics", "src_exchange_key": "news.#"}
            assert put(site, "follow", **more, dest_uri="amqp://", dest_exchange="remuda.topics") == 201
        for site, _ in pairs:
            eventually(lambda site=site: state_of(site, "follow")["state"] == "running")  # type: ignore[misc]
        for number in range(3):
            for site, _ in pairs:
                site.running.broker.publish(Message("news.x", b"%d" % number))
        # Each brings the other's three, and finds its own three, which come back, to be there already.
        for site, _ in pairs:
            eventually(lambda site=site: state_of(site, "follow")["messages_moved"] == 6)  # type: ignore[misc]
            assert site.running.broker.queue("seen").waiting == 6
        for site, _ in pairs:
            site.status("DELETE", "parameters/shovel/%2F/follow")
        for wire in wires.values():
            wire.close()


def test_s7_what_the_target_refuses_waits_at_the_source(site: Managed, upstream: RunningServer) -> None:
    name = fresh("full")
    with Client(upstream.url) as there, Client(site.amqp()) as here:
        there.channel.queue_declare(name, durable=True)
        here.channel.queue_declare(name, durable=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        there.publish(name, *(b"%d" % number for number in range(5)))
        assert put(site, name, src_uri=upstream.url, src_queue=name, dest_queue=name) == 201
        eventually(lambda: "reason" in state_of(site, name))
        assert state_of(site, name)["messages_moved"] == 2
        assert [here.get(name)[2] for _ in range(5)] == [b"%d" % number for number in range(5)]
        site.status("DELETE", f"parameters/shovel/%2F/{name}")


def test_s7_messages_are_sent_elsewhere_and_a_shovel_may_end(site: Managed, upstream: RunningServer) -> None:
    name = fresh("out")
    with Client(upstream.url) as there, Client(site.amqp()) as here:
        here.channel.queue_declare(name, durable=True)
        here.publish(name, *(b"%d" % number for number in range(10)), headers={"n": 1})
        more: dict[str, Any] = {
            "src_queue": name,
            "dest_uri": upstream.url,
            "dest_queue": name,
            "dest_add_forward_headers": True,
        }
        assert put(site, name, **more, src_delete_after="queue-length") == 201
        eventually(lambda: name not in [one["name"] for one in site.get("shovels")])
        method, properties, body = there.get(name)
        assert (method.routing_key, body, properties.headers["n"]) == (name, b"0", 1)
        assert properties.headers["x-shovelled"][0]["shovel-name"] == name
        assert there.bodies(name) == [b"%d" % number for number in range(1, 10)]
        assert here.waiting(name) == 0


def test_s7_rabbitmq_is_followed_and_fed(site: Managed, rabbit: RabbitNode) -> None:
    name = fresh("rabbit")
    with Client(rabbit.url) as there, Client(site.amqp()) as here:
        there.channel.queue_declare(name, durable=True)
        there.publish(name, *(b"%d" % number for number in range(2000)), delivery_mode=2)
        assert put(site, name, src_uri=rabbit.url, src_queue=name, dest_queue=name) == 201
        eventually(lambda: state_of(site, name)["messages_moved"] == 2000)
        assert here.bodies(name) == [b"%d" % number for number in range(2000)]
        here.publish(f"{name}-back", b"never routed")
        here.channel.queue_declare(f"{name}-back", durable=True)
        here.publish(f"{name}-back", b"home")
        assert put(site, f"{name}-b", src_queue=f"{name}-back", dest_uri=rabbit.url, dest_queue=f"{name}-home") == 201
        eventually(lambda: state_of(site, f"{name}-b")["state"] == "running")
        assert there.get(f"{name}-home")[2] == b"home"
        for one in (name, f"{name}-b"):
            site.status("DELETE", f"parameters/shovel/%2F/{one}")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"src-queue": "a"}, "give one of dest-queue and dest-exchange"),
        ({"src-queue": "a", "src-exchange": "b", "dest-queue": "c"}, "give one of src-queue and src-exchange"),
        ({"src-uri": "http://x", "src-queue": "a", "dest-queue": "b"}, "must begin with amqp://"),
        ({"src-uri": [], "src-queue": "a", "dest-queue": "b"}, "must be a URI"),
        ({"src-uri": "amqp:///other", "src-queue": "a", "dest-queue": "b"}, "give a host and a login"),
        ({"src-uri": "remuda:///nowhere", "src-queue": "a", "dest-queue": "b"}, "name a host"),
        ({"src-queue": "a", "dest-queue": "a"}, "where they come from"),
        ({"src-queue": "a", "dest-queue": "b", "src-prefetch-count": "9"}, "whole number"),
        ({"src-queue": "a", "dest-queue": "b", "ack-mode": "perhaps"}, "ack-mode"),
        ({"src-queue": "a", "dest-queue": "b", "reconnect-delay": -1}, "reconnect-delay"),
        ({"src-queue": "a", "dest-queue": "b", "src-delete-after": 0}, "src-delete-after"),
        ({"src-queue": "a", "dest-queue": "b", "dest-queue-args": []}, ""),
        ({"src-queue": "a", "dest-queue": "b", "dest-queue-args": {"x": {"y": 1 << 99}}}, "arguments"),
        ({"src-queue": "a", "dest-queue": "b", "scr-uri": "amqp://"}, "did you mean"),
        (
            {"src-uri": "amqp://a@h/?password_file=/etc/hostname", "src-queue": "a", "dest-queue": "b"},
            "cannot have a password_file",
        ),
        (None, "must be an object"),
        ([1], "must be an object"),
    ],
)
def test_s7_what_no_shovel_can_be_is_refused_in_words(site: Managed, value: Any, word: str) -> None:
    answer = site.client.put("parameters/shovel/%2F/wrong", json={"value": value})
    if word:
        assert answer.status_code == 400
        assert word in answer.json()["reason"]
    else:
        assert answer.status_code == 201
        site.status("DELETE", "parameters/shovel/%2F/wrong")
    assert site.client.put("parameters/federation-upstream/%2F/x", json={"value": {}}).status_code == 400


def test_s7_brokers_that_are_not_there_hold_up_no_other(site: Managed, upstream: RunningServer) -> None:
    name = fresh("dead")
    value = {"src_uri": f"amqp://127.0.0.1:{free_port()}/", "src_queue": name, "dest_queue": f"{name}-in"}
    for number in range(40):
        assert put(site, f"{name}-{number}", **value) == 201
    with Client(upstream.url) as there, Client(site.amqp()) as here:
        there.channel.queue_declare(name, durable=True)
        there.publish(name, b"alive")
        assert put(site, name, **{**value, "src_uri": upstream.url}) == 201
        eventually(lambda: state_of(site, name)["messages_moved"] == 1)
        assert here.get(f"{name}-in")[2] == b"alive"
    for number in range(40):
        assert site.status("DELETE", f"parameters/shovel/%2F/{name}-{number}") == 204
    assert site.status("DELETE", f"parameters/shovel/%2F/{name}") == 204
    assert site.get("shovels") == []


def test_s7_shovels_are_kept_with_their_secrets_and_shown_without(tmp_path: Path) -> None:
    file = tmp_path / "data.shovels.json"
    value = {"src-uri": "amqp://ann:pass%20word@127.0.0.1:1/v?x", "src-queue": "a", "dest-queue": "b"}
    value["src-uri"] = "amqp://ann:pass%20word@127.0.0.1:1/v?heartbeat=9s"
    for _ in range(2):
        with managed(str(tmp_path / "data"), shovels=file) as one:
            if not file.exists():
                assert one.status("PUT", "parameters/shovel/%2F/s", {"value": value}) == 201
            shown = eventually(partial(_with_reason, one))
            assert shown["src_uri"] == "amqp://127.0.0.1:1/v"
            assert "pass" not in str(shown)
            assert one.get("parameters/shovel") == [{"component": "shovel", "vhost": "/", "name": "s", "value": value}]
            assert one.get("definitions")["parameters"] == one.get("parameters")
        assert file.stat().st_mode & 0o777 == 0o600
    with managed(str(tmp_path / "data"), shovels=file) as one:
        exported = one.get("definitions")
        assert one.status("DELETE", "parameters/shovel/%2F/s") == 204
        assert one.status("POST", "definitions", exported) in (200, 204)
        assert [kept["name"] for kept in one.get("parameters")] == ["s"]
