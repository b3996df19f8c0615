"""The management API: what tools read, what they change, and who may (S7)."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pika.exceptions
import pytest

from remuda.server.certificates import Certificates
from remuda.server.users import EVERYTHING, Users, add_user
from tests.server.amqp.kit import Client, eventually, fresh
from tests.server.management.kit import Managed, managed

READ_BY_TOOLS = {
    "overview": {
        "management_version", "rabbitmq_version", "cluster_name", "message_stats", "queue_totals", "object_totals",
        "listeners", "node", "churn_rates", "exchange_types", "product_name", "product_version", "rates_mode",
    },
    "queues/%2F": {
        "arguments", "auto_delete", "consumers", "consumer_utilisation", "durable", "effective_policy_definition",
        "exclusive", "messages", "messages_details", "messages_ready", "messages_ready_details", "message_stats",
        "messages_unacknowledged", "name", "node", "policy", "state", "type", "vhost", "memory", "message_bytes",
    },
    "exchanges": {"arguments", "auto_delete", "durable", "internal", "name", "type", "vhost"},
    "bindings": {
        "source", "vhost", "destination", "destination_type", "routing_key", "arguments", "properties_key",
    },
    "connections": {
        "auth_mechanism", "channel_max", "channels", "client_properties", "connected_at", "frame_max", "host", "name",
        "node", "peer_host", "peer_port", "port", "protocol", "recv_oct", "send_oct", "ssl", "state", "timeout",
        "type", "user", "vhost",
    },
    "channels": {
        "confirm", "connection_details", "consumer_count", "global_prefetch_count", "messages_unacknowledged", "name",
        "messages_uncommitted", "messages_unconfirmed", "node", "number", "prefetch_count", "state", "transactional",
        "user", "vhost",
    },
    "consumers": {
        "ack_required", "active", "channel_details", "consumer_tag", "exclusive", "prefetch_count", "queue",
    },
    "nodes": {"name", "running", "mem_used", "mem_limit", "disk_free", "fd_used", "fd_total", "uptime", "type"},
    "vhosts": {"name", "messages", "messages_ready", "messages_unacknowledged", "tracing", "cluster_state"},
}  # fmt: skip
"""What RabbitMQ 3.10 answers and tools read."""


@pytest.fixture(scope="module")
def site() -> Iterator[Managed]:
    with managed(vhosts=("/", "shop", "a/b")) as running:
        yield running


@pytest.fixture
def client(site: Managed) -> Iterator[Client]:
    with Client(site.amqp()) as connected:
        yield connected


def test_s7_everything_has_the_members_that_tools_read(site: Managed, client: Client) -> None:
    name, exchange = fresh(), fresh("x")
    client.channel.queue_declare(name, durable=True, arguments={"x-max-priority": 5})
    client.channel.exchange_declare(exchange, "topic")
    client.channel.queue_bind(name, exchange, "a.#", arguments={"k": "v"})
    client.publish(name, b"1", b"2", b"3")
    client.channel.basic_qos(prefetch_count=2)
    client.channel.basic_consume(name, lambda *_: None, arguments={"x-priority": 1})
    eventually(lambda: client.connection.process_data_events(0.05) or site.get(f"queues/%2F/{name}")["consumers"])
    for path, members in READ_BY_TOOLS.items():
        found = site.get(path)
        for one in found if isinstance(found, list) else [found]:
            assert members <= set(one), (path, members - set(one))
    queue = eventually(lambda: (found := site.get(f"queues/%2F/{name}"))["messages_unacknowledged"] == 2 and found)
    assert (queue["messages"], queue["messages_ready"], queue["arguments"]) == (3, 1, {"x-max-priority": 5})
    assert queue["message_stats"]["publish"] == 3
    assert queue["consumer_details"][0]["prefetch_count"] == 2
    assert queue["consumer_details"][0]["arguments"] == {"x-priority": 1}
    assert queue["consumer_details"][0]["queue"] == {"name": name, "vhost": "/"}
    bound = site.get(f"bindings/%2F/e/{exchange}/q/{name}")
    assert [(one["routing_key"], one["arguments"]) for one in bound] == [("a.#", {"k": "v"})]
    key = bound[0]["properties_key"]
    assert site.get(f"bindings/%2F/e/{exchange}/q/{name}/{quote(key, safe='')}") == bound[0]
    connection = next(one for one in site.get("connections") if one["channels"])
    assert connection["client_properties"]["product"].startswith("Pika")
    assert site.get(f"connections/{quote(connection['name'], safe='')}")["user"] == "guest"
    (channel,) = site.get(f"connections/{quote(connection['name'], safe='')}/channels")
    (consumer,) = site.get(f"channels/{quote(channel['name'], safe='')}")["consumer_details"]
    assert consumer["queue"] == {"name": name, "vhost": "/"}
    assert connection["name"] in {one["name"] for one in site.get("connections/username/guest")}
    assert site.get("connections/username/nobody") == []
    (node,) = site.get("nodes")
    assert {"topic", "x-consistent-hash"} <= {one["name"] for one in node["exchange_types"]}


def test_s7_keda_reads_a_queue_by_name_and_by_pattern(site: Managed, client: Client) -> None:
    """KEDA's scaler, with useRegex and pages, or of one queue; it scales by length or by the rate of publishing."""
    names = [fresh("keda") for _ in range(3)]
    for name in names:
        client.channel.queue_declare(name)
        client.publish(name, b"1", b"2")
    found = site.get("queues/%2F", page=1, use_regex="true", pagination="false", name="^keda-", page_size=100)
    assert {one["name"]: one["messages"] for one in found["items"]} == dict.fromkeys(names, 2)
    one = site.get(f"queues/%2F/{names[0]}")
    assert (one["messages"], one["messages_unacknowledged"], one["name"]) == (2, 0, names[0])
    assert one["message_stats"]["publish_details"]["rate"] >= 0
    assert site.status("GET", "queues/%2F/none") == 404


def test_s7_nservicebus_and_servicecontrol_find_what_they_ask_for(site: Managed) -> None:
    """Before it starts, NServiceBus wants a broker's version, streams, and quorum queues without a delivery limit; the
    licensing component of ServiceControl counts acknowledgements, page by page."""
    name = fresh("endpoint")
    with Client(site.amqp()) as client:
        client.channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        client.publish(name, b"1", b"2")
        assert client.bodies(name) == [b"1", b"2"]
    overview = site.get("overview")
    assert tuple(map(int, overview["rabbitmq_version"].split("."))) >= (3, 10)
    assert overview["disable_stats"] is False
    assert {"name": "stream_queue", "state": "enabled"}.items() <= site.get("feature-flags")[-1].items()
    queue = site.get(f"queues/%2F/{name}")
    assert (queue["type"], queue["effective_policy_definition"]) == ("quorum", {})
    assert "x-delivery-limit" not in queue["arguments"]
    assert queue.get("delivery_limit", "unlimited") == "unlimited"
    page = site.get("queues/%2F", page=1, page_size=500, name="", use_regex="false", pagination="true")
    assert page["page_count"] >= page["page"] == 1
    (found,) = (one for one in page["items"] if one["name"] == name)
    assert found["message_stats"]["ack"] == 2
    bindings = site.get(f"queues/%2F/{name}/bindings")
    assert [one["destination"] for one in bindings] == [name]


def test_s7_lists_are_cut_sorted_and_searched(site: Managed, client: Client) -> None:
    names = sorted(fresh("page") for _ in range(5))
    for number, name in enumerate(names):
        client.channel.queue_declare(name)
        client.publish(name, *[b"x"] * number)
    found = site.get("queues", page=2, page_size=2, name="page-", sort="messages", sort_reverse="true", columns="name")
    assert [list(one) for one in found["items"]] == [["name"], ["name"]]
    assert [one["name"] for one in found["items"]] == [names[2], names[1]]
    assert (found["page_count"], found["filtered_count"], found["item_count"]) == (3, 5, 2)
    assert found["total_count"] >= 5
    nested = site.get("queues", columns="name,message_stats.publish")
    assert any(one.get("message_stats") == {"publish": 4} for one in nested)
    for query in ({"page": 99}, {"page": "x"}, {"page": 1, "page_size": 501}, {"name": "(", "use_regex": "true"}):
        answer = site.client.get("queues", params=query)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request"), query


@pytest.mark.parametrize("vhost", ["/", "shop", "a/b"])
def test_s7_queues_exchanges_and_bindings_are_declared_and_deleted(site: Managed, vhost: str) -> None:
    at, name, exchange = quote(vhost, safe=""), quote(fresh("q/ü"), safe=""), fresh("x")
    assert site.status("PUT", f"queues/{at}/{name}", {"durable": True, "arguments": {"x-max-length": 5}}) == 201
    assert site.status("PUT", f"queues/{at}/{name}", {"durable": True, "arguments": {"x-max-length": 5}}) == 204
    wrong = site.client.put(f"queues/{at}/{name}", json={"durable": False})
    assert (wrong.status_code, "inequivalent arg 'durable'" in wrong.json()["reason"]) == (400, True)
    assert site.status("PUT", f"exchanges/{at}/{exchange}", {"type": "topic", "durable": True}) == 201
    assert site.status("PUT", f"exchanges/{at}/{exchange}", {"type": "none"}) == 400
    bound = site.client.post(f"bindings/{at}/e/{exchange}/q/{name}", json={"routing_key": "a.*", "arguments": {}})
    assert (bound.status_code, bound.headers["location"].endswith("/a.%2A")) == (201, True)
    body = {"properties": {"priority": 3, "headers": {"k": 1}}, "routing_key": "a.b", "payload": "hi"}
    sent = site.client.post(f"exchanges/{at}/{exchange}/publish", json={**body, "payload_encoding": "string"})
    assert sent.json() == {"routed": True}
    raw = {"properties": {}, "routing_key": "b", "payload": base64.b64encode(b"\xff").decode()}
    for key, routed in (("b", False), ("a.c", True)):
        answer = site.client.post(
            f"exchanges/{at}/{exchange}/publish", json={**raw, "routing_key": key, "payload_encoding": "base64"}
        )
        assert answer.json() == {"routed": routed}
    asked = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for _ in range(2):
        got = site.client.post(f"queues/{at}/{name}/get", json=asked).json()
        assert [(one["payload"], one["payload_encoding"], one["routing_key"]) for one in got] == [
            ("hi", "string", "a.b"), ("/w==", "base64", "a.c"),
        ]  # fmt: skip
    assert got[0]["properties"] == {"priority": 3, "headers": {"k": 1}}
    assert (got[0]["redelivered"], got[0]["exchange"], got[0]["message_count"]) == (True, exchange, 1)
    kept = site.client.post(f"queues/{at}/{name}/get", json={**asked, "count": 1, "ackmode": "ack_requeue_false"})
    assert len(kept.json()) == 1
    assert site.status("DELETE", f"queues/{at}/{name}/contents") == 204
    assert site.get(f"queues/{at}/{name}")["messages"] == 0
    assert site.status("DELETE", f"bindings/{at}/e/{exchange}/q/{name}/a.%2A") == 204
    assert site.get(f"bindings/{at}/e/{exchange}/q/{name}") == []
    for path in (f"exchanges/{at}/{exchange}", f"queues/{at}/{name}"):
        assert site.status("DELETE", path) == 204
        assert site.status("DELETE", path) == 404


def test_s7_connections_are_closed_from_here(site: Managed) -> None:
    client = Client(site.amqp())
    found = eventually(lambda: [one["name"] for one in site.get("connections") if one["channels"]])
    assert site.status("DELETE", f"connections/{quote(found[0], safe='')}") == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Closed via management plugin"):
        eventually(lambda: client.connection.process_data_events(0.05))
    with Client(site.amqp()) as told:
        site.client.delete("connections/username/guest", headers={"X-Reason": "we move house"})
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="we move house"):
            eventually(lambda: told.connection.process_data_events(0.05))
    assert site.status("DELETE", "connections/none") == 404


def test_s7_probes(site: Managed) -> None:
    amqp = site.running.port
    for path in (
        "aliveness-test/%2F", "aliveness-test/shop", "healthchecks/node", "health/checks/alarms",
        "health/checks/local-alarms", "health/checks/virtual-hosts", f"health/checks/port-listener/{amqp}",
        "health/checks/node-is-quorum-critical", "health/checks/protocol-listener/amqp",
    ):  # fmt: skip
        assert site.get(path)["status"] == "ok", path
    assert site.status("GET", "health/checks/port-listener/1") == 503
    assert site.status("GET", "health/checks/protocol-listener/mqtt") == 503
    assert site.status("GET", "nothing") == 404
    assert site.status("POST", "overview") == 405


def test_s7_a_probe_tells_when_the_certificate_ends(site: Managed, tmp_path: Path, monkeypatch: Any) -> None:
    def within(time: str) -> int:
        return site.status("GET", f"health/checks/certificate-expiration/{time}")

    assert within("1/years") == 200  # without TLS there is none
    for days in (40_000, 400):  # the year is written with four digits, or with two
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-subj", "/CN=localhost", "-days", str(days), "-keyout", tmp_path / "key", "-out", tmp_path / "cert"],
            capture_output=True, check=True, timeout=100,
        )  # fmt: skip
        monkeypatch.setattr(site.views, "certificates", Certificates(str(tmp_path / "cert"), str(tmp_path / "key")))
        assert (within("399/days"), within("40001/days")) == (200, 503)
        assert within("2/years") == (200 if days > 730 else 503)
    assert (within("1/blink"), within("soon/days")) == (400, 400)


def test_s7_metrics_name_each_queue(site: Managed, client: Client) -> None:
    name = fresh()
    client.channel.queue_declare(name)
    client.publish(name, b"1")
    text = httpx.get(f"{site.address}/metrics", auth=("guest", "guest"), timeout=60).text
    assert f'rabbitmq_detailed_queue_messages_ready{{vhost="/",queue="{name}"}} 1\n' in text
    assert re.search(r"^rabbitmq_queue_messages_ready [1-9]", text, re.MULTILINE)
    text = httpx.get(f"{site.address}/metrics/per-object", auth=("guest", "guest"), timeout=60).text
    assert f'rabbitmq_queue_messages_ready{{vhost="/",queue="{name}"}} 1\n' in text
    assert not re.search(r"^rabbitmq_queue_messages_ready \d", text, re.MULTILINE)


def test_s7_clients_get_their_turn_while_many_queues_are_listed(site: Managed) -> None:
    """Everything runs on one loop."""
    for number in range(300):
        site.running.broker.create_queue(f"many.{number}")

    async def listed() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(other())
        assert len(await site.views.queues(site.running.server.topology.vhosts.values())) >= 300
        beside.cancel()
        return turns

    assert site.running.run(listed()) >= 8
    for number in range(300):
        site.running.broker.remove_queue(f"many.{number}")


HOSTILE: list[tuple[str, str, Any]] = [
    ("PUT", "queues/%2F/q", []), ("PUT", "queues/%2F/q", {"durable": 5}), ("PUT", "queues/%2F/q", {"arguments": 5}),
    ("PUT", f"queues/%2F/{'x' * 300}", {}), ("PUT", "queues/%2F/vhost:a", {}), ("PUT", "queues/%2F/a%00b", {}),
    ("PUT", "exchanges/%2F/x", {"type": 5}), ("PUT", "exchanges/%2F/amq.mine", {"type": "topic"}),
    ("POST", "queues/%2F/amq.none/get", {}), ("POST", "exchanges/%2F/amq.topic/publish", {}),
    ("POST", "exchanges/%2F/amq.topic/publish", {"payload": "=", "payload_encoding": "base64", "routing_key": "k"}),
    ("POST", "exchanges/%2F/amq.topic/publish", {"payload": "x", "routing_key": "k", "properties": {"own": 1}}),
    ("POST", "exchanges/%2F/amq.topic/publish", {"payload": "x", "routing_key": "k", "properties": {"priority": "x"}}),
    ("POST", "exchanges/%2F/none/publish", {"payload": "x", "routing_key": "k"}),
    ("PUT", "policies/%2F/p", {"pattern": "(", "definition": {"max-length": 1}}),
    ("PUT", "policies/%2F/p", {"pattern": "x", "definition": {"max-length": "many"}}),
    ("PUT", "policies/%2F/p", {"pattern": "x", "definition": {"own": 1}}),
    ("PUT", "policies/%2F/p", {"pattern": "x", "definition": {}}),
    ("PUT", "vhosts/" + "v" * 65, None), ("DELETE", "vhosts/%2F", None), ("PUT", "users/ann", {"tags": ""}),
    ("POST", "bindings/%2F/e/amq.topic/q/none", {}), ("POST", "bindings/%2F/e/amq.topic/z/none", {}),
    ("PUT", "queues/%2F/q", {"arguments": {"a": 5 << 70}}),
    ("PUT", "queues/%2F/q", {"arguments": {"x-max-length": 5 << 70}}),
    ("POST", "definitions", []), ("PUT", "permissions/%2F/ann", {"read": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body"), HOSTILE)
def test_s7_what_makes_no_sense_is_refused_in_words(site: Managed, method: str, path: str, body: Any) -> None:
    before = site.running.server.mistakes.count
    answer = site.client.request(method, path, json=body)
    assert answer.status_code in (400, 401, 404), answer.text
    assert answer.json()["reason"]
    assert site.running.server.mistakes.count == before


def test_s7_pages_of_other_sites_are_refused(site: Managed) -> None:
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        assert site.client.get("overview", headers=headers).status_code == 403
    assert site.client.get("overview", headers={"origin": site.address}).status_code == 200


# Users


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    file = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(file, "guest", "guest-guest", {"/": EVERYTHING}, tags=["administrator"])
    add_user(file, "mon", "correct horse", {}, tags=["monitoring"])
    mine = {"configure": "^mine", "write": "^mine", "read": "^mine"}
    add_user(file, "ann", "correct horse", {"shop": mine}, tags=["management"])
    add_user(file, "app", "correct horse", {"/": EVERYTHING})
    with managed(users=Users.load(file)) as running:
        running.client.auth = httpx.BasicAuth("guest", "guest-guest")
        yield running


def test_s7_who_may_what(guarded: Managed) -> None:
    ann, mon, app = ((name, "correct horse") for name in ("ann", "mon", "app"))
    for auth in (("guest", "wrong"), ("nobody", "x"), app):  # an application without a tag has no business here
        answer = guarded.client.get("overview", auth=auth)
        assert (answer.status_code, answer.json()["error"]) == (401, "not_authorized")
    assert guarded.client.get("whoami", auth=mon).json() == {"name": "mon", "tags": ["monitoring"]}
    assert {one["name"] for one in guarded.client.get("vhosts", auth=mon).json()} == {"/", "shop"}
    assert [one["name"] for one in guarded.client.get("vhosts", auth=ann).json()] == ["shop"]
    assert guarded.status("GET", "queues/%2F", auth=ann) == 401
    assert guarded.status("PUT", "queues/shop/mine", {"durable": True}, auth=ann) == 201
    assert guarded.status("PUT", "queues/shop/yours", {"durable": True}, auth=ann) == 401
    assert guarded.status("PUT", "queues/shop/mine", {}, auth=mon) == 401  # may look, and not touch
    assert guarded.status("PUT", "queues/shop/mine", {}) == 401  # nor may who was not let into the vhost
    body = {"payload": "x", "routing_key": "mine", "properties": {}}
    assert guarded.status("POST", "exchanges/shop/amq.default/publish", body, auth=ann) == 401
    for path in ("users", "permissions", "definitions"):
        assert (guarded.status("GET", path, auth=ann), guarded.status("GET", path)) == (401, 200)
    for path in ("metrics",):
        assert httpx.get(f"{guarded.address}/{path}", auth=ann, timeout=60).status_code == 401
    assert guarded.status("PUT", "policies/shop/p", {"pattern": "", "definition": {"max-length": 1}}, auth=ann) == 401


def test_s7_users_vhosts_and_permissions_are_changed_from_here(guarded: Managed) -> None:
    assert guarded.status("PUT", "users/new", {"password": "short", "tags": "management"}) == 201
    assert "new" in {one["name"] for one in guarded.get("users/without-permissions")}
    assert guarded.status("PUT", "vhosts/fresh%2Fone") == 201
    granted = {"configure": ".*", "write": ".*", "read": ""}
    assert guarded.status("PUT", "permissions/fresh%2Fone/new", granted) == 201
    assert "new" not in {one["name"] for one in guarded.get("users/without-permissions")}
    assert guarded.get("permissions/fresh%2Fone/new") == {"user": "new", "vhost": "fresh/one", **granted}
    with Client(guarded.amqp("fresh%2Fone", "new:short")) as inside:
        inside.channel.queue_declare("q", durable=True)
        assert inside.refused(lambda ch: ch.basic_get("q"))[0] == 403
        assert guarded.status("DELETE", "users/new") == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            eventually(lambda: inside.connection.process_data_events(0.05))
    assert guarded.status("DELETE", "users/new") == 404
    for name in ("one", "two"):
        assert guarded.status("PUT", f"users/{name}", {"password": "short", "tags": ""}) == 201
    assert guarded.status("POST", "users/bulk-delete", {"users": ["one", "two", "three"]}) == 204
    assert not {"one", "two"} & {one["name"] for one in guarded.get("users")}
    assert guarded.status("DELETE", "vhosts/fresh%2Fone") == 204
    assert not [info for info in guarded.running.broker.queues() if "fresh" in info.name]
    assert "fresh/one" not in {one["name"] for one in guarded.get("vhosts")}


def test_s7_a_tool_may_hammer_it(site: Managed, tmp_path: Path) -> None:
    """Ten thousand queues: one page of them is an answer as any other."""
    broker = site.running.broker
    for number in range(2_000):
        broker.create_queue(f"many-{number}", persistence="memory")
    found = site.get("queues", page=20, page_size=100, name="many-")
    assert len(found["items"]) == 100
    for number in range(2_000):
        broker.remove_queue(f"many-{number}")


def test_s7_definitions_of_the_wrong_shape_are_listed(site: Managed) -> None:
    before = site.running.server.mistakes.count
    wrong = {
        "queues": [{"name": 5}, {"name": "z", "durable": "often"}, 5, {"name": "z", "vhost": 5}],
        "exchanges": [{"name": 5, "type": 5}, {"name": "x"}], "bindings": [{}, {"source": "x", "destination": 5}],
        "users": [{"name": 5, "tags": 5}], "vhosts": [{"name": 5}, {}], "policies": "x", "parameters": 5,
        "permissions": [{"user": 5}], "topic_permissions": [5],
    }  # fmt: skip
    answer = site.client.post("definitions", json=wrong)
    assert answer.status_code == 200, answer.text
    assert answer.json()["imported"] == 0
    assert len(answer.json()["not_imported"]) == 15
    deep = b'{"arguments":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}"
    assert site.client.put("queues/%2F/deep", content=deep).status_code == 400
    assert site.running.server.mistakes.count == before
