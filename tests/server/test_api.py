"""U2: the HTTP API, over a real socket."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from remuda.bus.bus import Bus
from remuda.model.message import Message
from remuda.model.operations.verbs import VERBS
from remuda.server.http.api import api_types, event_stream, held_deliveries
from remuda.server.http.api.api import Api
from remuda.server.http.api.idempotency import Idempotency
from remuda.server.http.api.problems import Problem
from tests.broker.kit import ManualClock
from tests.server.site import Site, serving, until


def test_publishes_one_many_and_ndjson(site: Site) -> None:
    """U2"""
    one = site.client.post("/api/v1/messages", json={"topic": "order.placed", "body": {"n": 1}})
    many = site.client.post("/api/v1/messages", json=[{"topic": "order.placed", "body": n} for n in range(3)])
    lines = "\n".join(json.dumps({"topic": "order.paid", "text": f"line {n}"}) for n in range(4))
    ndjson = site.client.post("/api/v1/messages", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert [answer.status_code for answer in (one, many, ndjson)] == [201, 201, 201]
    assert [answer.json()["accepted"] for answer in (one, many, ndjson)] == [1, 3, 4]
    assert site.queue("orders")["waiting"] == 8
    pulled = site.pull("orders", count=10)
    assert [message.get("text") for message in pulled["messages"]] == [
        '{"n":1}', "0", "1", "2", "line 0", "line 1", "line 2", "line 3",
    ]  # fmt: skip
    assert pulled["messages"][0]["mimeType"] == "application/json"
    assert pulled["messages"][4]["mimeType"].startswith("text/plain")


def test_bytes_go_in_and_come_out_as_they_were(site: Site) -> None:
    """U2 M1"""
    body = bytes(range(256))
    answer = site.client.post(
        "/api/v1/messages",
        json={
            "topic": "order.scan", "base64": base64.b64encode(body).decode(), "mimeType": "image/x-scan",
            "headers": {"trace": "1"}, "object": "order", "key": "7", "priority": "high", "id": "own-1",
        },
    )  # fmt: skip
    assert answer.json()["ids"] == ["own-1"]
    message = site.pull("orders")["messages"][0]
    assert base64.b64decode(message["base64"]) == body
    assert (message["mimeType"], message["object"], message["key"]) == ("image/x-scan", "order", "7")
    assert message["headers"]["trace"] == "1"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"body": 1}, "topic"),
        ({"topic": ""}, "length"),
        ({"topic": ".x"}, "root"),
        ({"topic": "a.*"}, "wildcard"),
        ({"topic": "a", "body": 1, "text": "x"}, "one of body"),
        ({"topic": "a", "prority": 1}, "prority"),
        ({"topic": "a", "priority": 99}, "priority"),
        ({"topic": "a", "headers": {"n": 1}}, "headers"),
        ({"topic": "a", "delay": "5 parsecs"}, "delay"),
        ({"topic": "a", "delay": "2h", "expires": "1h"}, "expire"),
        ({"topic": "a", "id": "x" * 256}, "length"),
        ([{"topic": "a"}, {"topic": 1}], "$[1]"),
        ("text", "object"),
    ],
)
def test_what_cannot_be_published_is_told_and_nothing_is_stored(site: Site, sent: object, said: str) -> None:
    """U2"""
    answer = site.client.post("/api/v1/messages", json=sent)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]
    assert site.client.get("/api/v1/log?from=0").json()["entries"] == []


def test_a_wrong_timeout_is_named_as_such(site: Site) -> None:
    """U2"""
    answer = site.client.post("/api/v1/messages?timeout=5+parsecs", json={"topic": "a"})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("timeout: ")


def test_a_batch_that_is_refused_in_part_says_which(site: Site) -> None:
    """U2"""
    site.client.patch("/api/v1/queues/orders", json={"message_limit": 2})
    answer = site.client.post("/api/v1/messages", json=[{"topic": "order.placed", "body": n} for n in range(4)])
    assert answer.status_code == 201
    assert answer.json()["accepted"] == 2
    assert sorted(answer.json()["refused"]) == ["2", "3"]
    assert site.client.post("/api/v1/messages", json={"topic": "order.placed"}).status_code == 409


def test_an_idempotency_key_publishes_once(site: Site) -> None:
    """U2"""
    key = {"Idempotency-Key": "order-7"}
    message = {"topic": "order.placed", "body": 7}
    answers = [site.client.post("/api/v1/messages", json=message, headers=key) for _ in range(3)]
    assert len({answer.json()["ids"][0] for answer in answers}) == 1
    assert site.queue("orders")["waiting"] == 1
    other = site.client.post("/api/v1/messages", json={**message, "body": 8}, headers=key)
    assert other.status_code == 422
    wrong = {"Idempotency-Key": "order-8"}
    assert site.client.post("/api/v1/messages", json={"topic": ""}, headers=wrong).status_code == 400
    assert site.client.post("/api/v1/messages", json=message, headers=wrong).status_code == 201


def test_answers_kept_under_keys_are_bounded_in_bytes() -> None:
    """U2: the oldest are forgotten, and what failed is not remembered."""
    done: list[str] = []

    async def ask(keys: list[str]) -> None:
        kept = Idempotency(limit_bytes=100)
        for key in keys:

            async def do(key: str = key) -> bytes:
                done.append(key)
                if key == "broken":
                    raise Problem(400, "Broken", "broken")
                return b"x" * 40

            with contextlib.suppress(Problem):
                assert len(await kept.once("ann", key, key.encode(), do)) == 40

    asyncio.run(ask(["a", "a", "broken", "broken", "b", "b", "c", "c", "a"]))
    assert done == ["a", "broken", "broken", "b", "c", "a"]


def test_a_delivery_in_a_clients_hands_keeps_no_bodies() -> None:
    """U2: and it is forgotten a minute after its time is up."""

    async def play() -> None:
        with Bus() as bus:
            bus.broker.create_queue("q", type="pull")
            bus.broker.publish([Message("q", b"x" * 1000), Message("q", b"y"), Message("q", b"z")], queue="q")
            clock = ManualClock(time.time_ns() // 1000)
            held = held_deliveries.Deliveries(now=clock)
            first = await bus.broker.aio.pull("q", 2)
            assert first is not None
            token = held.add(first)
            assert held.get(token).bodies == [b"", b""]
            assert await held.get(token).ack([1]) == 1
            second = await bus.broker.aio.pull("q", 1)
            assert second is not None
            clock.now += 80_000_000
            held.add(second)
            assert len(held) == 1

    asyncio.run(play())


def test_a_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    """U2"""
    with Bus() as bus, serving(bus, body_limit=1000) as site:
        assert site.client.post("/api/v1/messages", content=b"x" * 1001, headers=_JSON).status_code == 413

        def endless() -> object:
            yield from (b"x" * 500 for _ in range(10))

        assert site.client.post("/api/v1/messages", content=endless(), headers=_JSON).status_code == 413  # type: ignore[arg-type]


_JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("answer", "asked", "state"),
    [
        ("ack", {}, "X"),
        ("retry", {"after": "1h", "reason": "busy"}, "R"),
        ("release", {}, "Q"),
        ("invalid", {"reason": "not JSON"}, "I"),
        ("not-interested", {}, "N"),
        ("dead", {"reason": "gave up"}, "E"),
        ("nack", {"reason": "no"}, "Q"),
    ],
)
def test_each_answer_to_a_pull(site: Site, answer: str, asked: dict[str, str], state: str) -> None:
    """U2 Q16"""
    id = site.publish("order.placed", 1)
    pulled = site.pull("orders", consumer="worker-1")
    path = f"/api/v1/deliveries/{pulled['delivery']}/{answer}"
    assert site.client.post(path, json=asked).json() == {"count": 1}
    life = site.client.get(f"/api/v1/messages/{id}").json()
    assert life["document"]["state"] == state
    assert site.client.post(path, json=asked).json() == {"count": 0}


def test_rows_of_a_delivery_are_answered_apart_and_dead_ones_go_on_elsewhere(site: Site) -> None:
    """U2"""
    site.client.put("/api/v1/queues/later", json={"type": "pull"})
    for n in range(3):
        site.publish("order.placed", n)
    token = site.pull("orders", count=3)["delivery"]
    path = f"/api/v1/deliveries/{token}"
    assert site.client.post(f"{path}/renew").json() == {"renewed": True}
    assert site.client.post(f"{path}/ack", json={"rows": [0]}).json() == {"count": 1}
    assert site.client.post(f"{path}/dead", json={"rows": [1, 2], "to": "later"}).json() == {"count": 2}
    assert site.queue("later")["waiting"] == 2
    assert site.client.post(f"{path}/ack", json={"rows": [9]}).status_code == 400
    assert site.client.post("/api/v1/deliveries/unknown/ack").status_code == 404


def test_a_pull_waits_for_a_message(site: Site) -> None:
    """U2 Q16"""
    threading.Timer(0.3, lambda: site.bus.publish("order.placed", 5)).start()
    began = time.monotonic()
    pulled = site.pull("orders", wait=30)
    assert [message["text"] for message in pulled["messages"]] == ["5"]
    assert time.monotonic() - began < 25
    assert site.pull("orders") == {"delivery": None, "messages": [], "deadline": None}


def test_queues_are_made_changed_and_removed(site: Site) -> None:
    """U2"""
    made = site.client.put("/api/v1/queues/a%2Fb", json={"type": "pull", "message_limit": 5})
    assert made.status_code == 201
    assert made.json()["options"]["message_limit"] == 5
    assert site.client.put("/api/v1/queues/a%2Fb", json={"type": "pull"}).status_code in (200, 400)
    assert (
        site.client.patch("/api/v1/queues/a%2Fb", json={"message_timeout": "4h"}).json()["options"]["message_timeout"]
        == "4h"
    )
    for wrong in ("name", "self", "who"):
        assert site.client.patch("/api/v1/queues/a%2Fb", json={wrong: 1}).status_code == 400
    assert "did you mean" in site.client.patch("/api/v1/queues/a%2Fb", json={"mesage_limit": 5}).json()["detail"]
    assert site.client.post("/api/v1/queues/a%2Fb/pause").json()["summary"]["status"] == "only-publish"
    told = site.client.put("/api/v1/queues/a%2Fb", json={"type": "push", "message_timeout": "1s"}).json()["detail"]
    assert "type is pull" in told
    assert "message_timeout is 4h" in told
    assert site.client.post("/api/v1/queues/a%2Fb/resume").json()["summary"]["status"] == "running"
    assert site.client.delete("/api/v1/queues/a%2Fb").status_code == 204
    assert site.client.get("/api/v1/queues/a%2Fb").status_code == 404
    assert site.client.delete("/api/v1/queues/remuda.unrouted").status_code == 400


def test_queues_are_paged_by_name(site: Site) -> None:
    """U2"""
    for n in range(7):
        site.bus.broker.create_queue(f"many.{n}")
    names: list[str] = []
    cursor = ""
    while True:
        page = site.client.get(f"/api/v1/queues?prefix=many&limit=3&cursor={cursor}").json()
        names += [queue["name"] for queue in page["queues"]]
        if page["next"] is None:
            break
        cursor = page["next"]
    assert names == [f"many.{n}" for n in range(7)]


def test_messages_are_found_by_every_word_and_paged_without_loss_or_repeat(site: Site) -> None:
    """U2 T4: without an index, among recent messages."""
    site.bus.broker.create_queue("copies", type="pull", patterns=["order.#"])
    for n in range(12):
        site.publish("order.placed", {"n": n}, object="order", key=str(n % 3))
    site.publish("orders.other", {"n": 99})
    found: list[tuple[int, str]] = []
    cursor = ""
    while True:
        page = site.client.get(f"/api/v1/messages?topic=ORDER.*&limit=5&cursor={cursor}").json()
        found += [(row["offset"], row["queue"]) for row in page["messages"]]
        if page["next"] is None:
            break
        cursor = page["next"]
    assert len(found) == len(set(found)) == 24
    assert [offset for offset, _ in found] == sorted((offset for offset, _ in found), reverse=True)

    def count(words: str) -> int:
        return len(site.client.get(f"/api/v1/messages?limit=100&{words}").json()["messages"])

    assert count("queue=orders") == 12
    assert count("queue=orders&key=1") == 4
    assert count("queue=orders&object=order&text=11") == 1
    assert count("queue=orders&state=Q") == 12
    assert count("queue=orders&state=E") == 0
    assert count(f"queue=orders&until={int(time.time() * 1e6) - 60_000_000}") == 0
    assert site.client.get("/api/v1/messages?cursor=nonsense").status_code == 400
    assert site.client.get("/api/v1/messages?state=Z").status_code == 400
    assert site.client.get("/api/v1/messages?limit=0").status_code == 400
    assert site.client.get("/api/v1/messages?quue=x").status_code == 400


def test_a_whole_life_with_attempts_errors_callbacks_and_queue_delay() -> None:
    """U2 M7"""
    bus = Bus()

    @bus.subscribe("order.placed", queue="reserve", retry=["0s"])
    def reserve(body: int) -> str:
        if body == 1:
            raise ValueError("no stock")
        return "reserved"

    @bus.subscribe("stock.reserved", queue="ship")
    def ship(body: str) -> None: ...

    with bus, serving(bus) as site:
        good = site.publish("order.placed", 2, callback="stock.reserved", headers={"Authorization": "Bearer secret"})
        bad = site.publish("order.placed", 1)
        bus.run(until_idle=True)
        life = site.client.get(f"/api/v1/messages/{good}").json()
        assert "secret" not in json.dumps(life)
        assert [entry["state"] for entry in life["timeline"]] == ["L", "Q", "F", "S", "X"]
        fetched = life["timeline"][2]
        assert fetched["waited"] >= 0
        assert life["timeline"][3]["took"] >= 0
        (child,) = life["children"]
        assert (child["name"], child["queue"], child["state"]) == ("stock.reserved", "ship", "X")
        assert site.client.get(f"/api/v1/messages/{child['id']}").json()["parent"] == good
        life = site.client.get(f"/api/v1/messages/{bad}").json()
        assert [entry["state"] for entry in life["timeline"]] == ["L", "Q", "F", "R", "Q", "F", "E"]
        assert "ValueError: no stock" in life["timeline"][3]["detail"]
        assert life["document"]["queues"][0]["reason"] == "ValueError: no stock"
        assert site.client.get("/api/v1/messages/unknown").status_code == 404


def test_offsets_within_a_group_are_gone_through_once() -> None:
    """U2: a hundred thousand of them would hold up the event loop for seconds if each message of the group did."""
    rounds = []

    class Offsets(list[int]):
        def __iter__(self) -> Iterator[int]:
            rounds.append(1)
            return super().__iter__()

    class Asking:
        service = SimpleNamespace(group=None)

        def path(self, name: str) -> str:
            return name

        async def run(self, *_: object) -> object:
            return SimpleNamespace(offsets=[5, 6, 7])

    request: Any = api_types.request_of(VERBS["forget"])
    asked = request(group="k", offsets=Offsets([9, 7, 5]))
    chosen = asyncio.run(Api()._choice(Asking(), VERBS["forget"], asked))  # type: ignore[arg-type]
    assert chosen is not None
    assert chosen.offsets == ((5, 1), (7, 1))
    assert len(rounds) == 1


def test_dead_letters_are_grouped_and_reprocessed_with_who() -> None:
    """U2 B15"""
    bus = Bus()

    @bus.subscribe("order.placed", queue="reserve", retry="never")
    def reserve(body: int) -> None:
        if body % 2:
            raise ValueError(f"no stock for {body}")
        raise KeyError(body)

    with bus, serving(bus) as site:
        for n in range(10):
            site.publish("order.placed", n)
        bus.run(until_idle=True)
        until(lambda: site.queue("reserve")["dead"] == 10)
        site.client.get("/api/v1/messages?limit=1")
        groups = site.client.get("/api/v1/queues/reserve/dead").json()["groups"]
        assert [(group["exception"], group["count"]) for group in groups] == [("KeyError", 5), ("ValueError", 5)]
        assert all(group["place"].endswith("in reserve") for group in groups)

        def post(verb: str, **asked: object) -> int:
            answer = site.client.post(f"/api/v1/queues/reserve/{verb}", json=asked)
            assert answer.status_code == 200, answer.text
            count: int = answer.json()["count"]
            return count

        assert post("reprocess", group=groups[1]["key"], offsets=[0, 1, 2, 3]) == 2
        assert post("reprocess", group=groups[1]["key"]) == 3
        assert post("reprocess", offsets=[0]) == 1
        assert post("reprocess", reason="2", states="E") == 1
        assert post("reprocess", since=int(time.time() * 1e6) + 10**9) == 0
        assert post("forget", offsets=[4]) == 1
        site.client.put("/api/v1/queues/elsewhere", json={"type": "pull"})
        assert post("move", to="elsewhere", states="dead-letters") == 2
        assert site.queue("elsewhere")["waiting"] == 2
        assert site.queue("reserve")["dead"] == 0
        assert post("move", to="elsewhere") == 7
        assert site.queue("elsewhere")["waiting"] == 9
        assert site.client.post("/api/v1/queues/elsewhere/clear").json() == {"count": 9}
        events = site.client.get("/api/v1/log?kind=events&from=0&limit=500").json()["entries"]
        assert {event["who"] for event in events if event.get("reason") in ("reprocessed", "cleared")} == {"local"}
        assert site.client.post("/api/v1/queues/reserve/reprocess", json={"states": "Q"}).status_code == 409
        assert site.client.post("/api/v1/queues/reserve/move", json={"to": "nowhere"}).status_code == 404
        assert site.client.post("/api/v1/queues/reserve/move", json={"to": "reserve"}).status_code == 400


def test_edit_and_resend_keeps_secrets_and_names_the_cause(site: Site) -> None:
    """U2"""
    id = site.publish("order.placed", {"n": "bad"}, headers={"api-key": "s3cret", "x": "1"})
    token = site.pull("orders")["delivery"]
    site.client.post(f"/api/v1/deliveries/{token}/dead", json={"reason": "bad n"})
    shown = site.client.get(f"/api/v1/messages/{id}").json()["document"]["message"]["headers"]
    assert shown["api-key"] != "s3cret"
    edited = {"queue": "orders", "body": {"n": 1}, "headers": {**shown, "x": "2"}, "forget": True}
    sent = site.client.post(f"/api/v1/messages/{id}/resend", json=edited).json()["id"]
    assert sent != id
    message = site.pull("orders")["messages"][0]
    assert message["text"] == '{"n":1}'
    assert message["headers"]["api-key"] == "s3cret"
    assert message["headers"]["x"] == "2"
    assert message["headers"]["cap-corr-id"] == id
    assert site.queue("orders")["dead"] == 0


def test_the_log_streams_live_from_any_offset(site: Site) -> None:
    """U2 T2"""
    for n in range(5):
        site.publish("order.placed", n)
    with site.client.stream("GET", "/api/v1/log/stream?from=2&topic=order") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        assert [json.loads(next(lines)[6:])["offset"] for _ in range(3)] == [2, 3, 4]
        site.publish("other.topic")
        site.publish("order.placed", "new")
        assert json.loads(next(lines)[6:])["excerpt"] == '"new"'
    with site.client.stream("GET", "/api/v1/log/stream?from=0", headers={"Last-Event-ID": "3"}) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("id: "))
        assert next(lines) == "id: 4"


def test_streams_are_capped(site: Site) -> None:
    """U2"""
    with Bus() as bus, serving(bus, streams=2) as small:
        with (
            small.client.stream("GET", "/api/v1/log/stream"),
            small.client.stream("GET", "/api/v1/log/stream"),
        ):
            assert small.client.get("/api/v1/log/stream").status_code == 503

        def opens() -> bool:
            with small.client.stream("GET", "/api/v1/log/stream") as stream:
                return stream.status_code == 200

        assert until(opens, "a place to become free")


def test_a_client_that_stops_reading_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """U2"""
    monkeypatch.setattr(event_stream, "_SEND_SECONDS", 0.5)
    with Bus() as bus, serving(bus, streams=1) as site, socket.socket() as slow:
        bus.publish_many("order.placed", ["x" * 200] * 40_000)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = site.address.removeprefix("http://").split(":")
        slow.connect((host, int(port)))
        slow.sendall(b"GET /api/v1/log/stream?from=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert until(lambda: site.client.get("/api/v1/log/stream").status_code == 503)

        def opens() -> bool:
            with site.client.stream("GET", "/api/v1/log/stream") as stream:
                return stream.status_code == 200

        assert until(opens, "the slow client's place to become free", 60)


def test_health_and_prometheus(site: Site) -> None:
    """U2"""
    site.publish("order.placed")
    assert site.client.get("/health/live").json() == {"live": True}
    assert site.client.get("/health/ready").json() == {"live": True, "ready": True}
    text = site.client.get("/metrics").text
    assert 'remuda_queue_messages{queue="orders",state="waiting"} 1.0' in text
    assert "remuda_up 1.0" in text


def test_prometheus_reads_every_name(site: Site) -> None:
    """U2: as its own parser does."""
    names = ['say "hi"', "back\\slash", "{curly=}", "ünï#x", "a,b"]
    for name in names:
        site.bus.broker.create_queue(name, type="pull")
    site.publish("order.placed")
    text = site.client.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    kinds = {name: family.type for name, family in families.items()}
    assert kinds["remuda_queue_messages"] == "gauge"
    assert kinds["remuda_queue_entered"] == "counter"
    found = {sample.labels["queue"] for sample in families["remuda_queue_consumers"].samples}
    assert {*names, "orders"} <= found
    entered = {
        (sample.labels["queue"], sample.labels["state"]): sample.value
        for sample in families["remuda_queue_entered"].samples
    }
    assert entered["orders", "queued"] == 1


def test_a_broker_that_cannot_be_opened_is_told_and_comes_back(tmp_path: Path) -> None:
    """U2"""
    with Bus(tmp_path / "data") as owner:
        owner.broker.create_queue("orders", type="pull")
        with Bus(tmp_path / "data") as bus, serving(bus) as site:
            answer = site.client.get("/api/v1/queues")
            if answer.status_code == 503:  # where a directory has room for one process only
                assert site.client.get("/health/ready").status_code == 503
                assert "remuda_up 0.0" in site.client.get("/metrics").text
                owner.close()
            assert until(lambda: site.client.get("/api/v1/queues").status_code == 200)
            bus.close()
            assert until(lambda: site.client.get("/api/v1/queues/orders").status_code == 200)


def test_methods_types_and_addresses_that_are_not_there(site: Site) -> None:
    """U2"""
    wrong = site.client.request("PUT", "/api/v1/messages")
    assert wrong.status_code == 405
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "POST"}
    assert (
        site.client.post("/api/v1/messages", content=b"<a/>", headers={"Content-Type": "text/xml"}).status_code == 415
    )
    assert site.client.get("/api/v1/nothing").status_code == 404
    assert site.client.get("/api/v1/nothing").headers["content-type"] == "application/problem+json"


def test_a_body_that_would_not_be_read_is_refused(site: Site) -> None:
    """U2: whoever sends a filter with a clear must not lose everything."""
    site.publish("order.placed")
    for verb, wrong in (("clear", {"reasons": "no stock"}), ("pause", {"reason": "no stock"}), ("resume", {"a": 1})):
        told = site.client.post(f"/api/v1/queues/orders/{verb}", json=wrong)
        assert told.status_code == 400
    assert site.client.request("DELETE", "/api/v1/queues/orders", json={"force": True}).status_code == 400
    assert (site.queue("orders")["waiting"], site.queue("orders")["status"]) == (1, "running")
    assert site.client.post("/api/v1/queues/orders/clear", json={}).json() == {"count": 1}


def test_clear_takes_filters(site: Site) -> None:
    """B15: by topic, by when it was published, and by the reason of the last failure."""
    clear = "/api/v1/queues/orders/clear"
    site.publish("order.placed", 1)
    site.publish("order.paid", 2)
    site.publish("order.paid", 3)
    pulled = site.pull("orders")
    answer = {"after": "1h", "reason": "no stock today"}
    assert site.client.post(f"/api/v1/deliveries/{pulled['delivery']}/retry", json=answer).json() == {"count": 1}
    assert site.client.post(clear, json={"reason": "on fire"}).json() == {"count": 0}
    assert site.client.post(clear, json={"until": 1}).json() == {"count": 0}
    assert site.client.post(clear, json={"reason": "no stock"}).json() == {"count": 1}
    assert site.client.post(clear, json={"topic": "order.placed"}).json() == {"count": 0}
    assert site.client.post(clear, json={"topic": "order.paid", "since": 1}).json() == {"count": 2}
    assert (site.queue("orders")["waiting"], site.queue("orders")["dead"]) == (0, 3)


def test_reprocess_reaches_what_waits_for_a_retry(site: Site) -> None:
    """B15, U1: Failed/Dead means both, on the page and in the API."""
    reprocess = "/api/v1/queues/orders/reprocess"

    def fail(answer: str, **more: str) -> None:
        pulled = site.pull("orders")
        path = f"/api/v1/deliveries/{pulled['delivery']}/{answer}"
        assert site.client.post(path, json={"reason": "no stock", **more}).json() == {"count": 1}

    site.publish("order.placed", 1)
    site.publish("order.placed", 2)
    fail("dead")
    fail("retry", after="1h")
    assert site.client.post(reprocess, json={"states": "EIN", "reason": "no"}).json() == {"count": 1}
    assert site.client.post(reprocess, json={"reason": "on fire"}).json() == {"count": 0}
    assert site.client.post(reprocess, json={"states": "E"}).json() == {"count": 0}
    assert site.client.post(reprocess).json() == {"count": 1}
    assert site.queue("orders")["waiting"] == 2


def test_pause_keeps_taking_messages_unless_told_to_refuse(site: Site) -> None:
    """U1, Q14: as the command does; one who pauses a queue does not break those who publish to it."""
    pause = "/api/v1/queues/orders/pause"
    assert site.client.post(pause).json()["summary"]["status"] == "only-publish"
    site.publish("order.placed", 1)
    assert site.pull("orders")["messages"] == []
    assert site.client.post(pause, json={"refuse": True}).json()["summary"]["status"] == "paused"
    assert site.client.post("/api/v1/messages", json={"topic": "order.placed", "body": 2}).status_code >= 400
    assert site.client.post("/api/v1/queues/orders/resume").json()["summary"]["status"] == "running"
    assert len(site.pull("orders")["messages"]) == 1


def test_one_negative_answer_says_where_its_message_goes_back(site: Site) -> None:
    """Q9"""
    for number in range(3):
        site.publish("order.placed", number)
    first = site.pull("orders")
    path = f"/api/v1/deliveries/{first['delivery']}"
    assert site.client.post(f"{path}/ack", json={"front": True}).status_code == 400
    assert "after: " in site.client.post(f"{path}/retry", json={"after": "soon"}).json()["detail"]
    assert site.client.post(f"{path}/nack", json={"front": True, "counted": False}).json() == {"count": 1}
    again = site.pull("orders")["messages"][0]
    assert (again["text"], again["attempt"]) == ("0", 1)


def test_states_are_asked_for_by_letter_or_by_name(site: Site) -> None:
    """T4"""
    site.publish("order.placed", 1)
    for states in ("Q", "queued", "dead,queued"):
        found = site.client.get("/api/v1/messages", params={"state": states}).json()["messages"]
        assert [row["state"] for row in found] == ["Q"]
    assert site.client.get("/api/v1/messages", params={"state": "dead,odd"}).status_code == 400


def test_a_callback_is_a_topic_to_publish_to(site: Site) -> None:
    for wrong in ("*", "order.#", "a\nb"):
        told = site.client.post("/api/v1/messages", json={"topic": "order.placed", "callback": wrong})
        assert (told.status_code, "callback" in told.json()["detail"]) == (400, True)
    assert site.queue("orders")["waiting"] == 0


def test_a_name_in_the_address_is_utf_8(site: Site) -> None:
    assert site.client.put("/api/v1/queues/%ff", json={"type": "pull"}).status_code == 400
    assert site.client.put("/api/v1/queues/%EF%BF%BD", json={"type": "pull"}).json()["summary"]["name"] == "\ufffd"


def test_http_client_errors_do_not_disturb_others(site: Site) -> None:
    """A client that leaves in the middle of a pull gives its messages back."""
    with pytest.raises(httpx.ReadTimeout):
        site.client.post("/api/v1/queues/orders/pull", json={"wait": 30}, timeout=0.2)
    time.sleep(1.5)
    site.publish("order.placed", 1)
    assert len(until(lambda: site.pull("orders")["messages"])) == 1


def test_a_message_that_failed_over_is_not_called_dead() -> None:
    """B7, U1: neither in its numbers nor on its page, which offers no retry where it is no longer."""
    bus = Bus()

    @bus.subscribe("x", queue="first", retry="never", failover="second")
    def first(body: int) -> None:
        raise ValueError("no")

    @bus.subscribe("unused", queue="second")
    def second(body: int) -> None: ...

    with bus, serving(bus) as site:
        message = bus.publish("x", 1)
        bus.run(until_idle=True)
        assert site.queue("first")["dead"] == 0
        life = site.client.get(f"/api/v1/messages/{message}").json()
        assert life["document"]["state"] == "X"
        assert [view.get("movedTo") for view in life["document"]["queues"]] == ["second", None]
        said = [(entry["queue"], entry["what"]) for entry in life["timeline"]]
        assert ("first", "Moved to second") in said
        assert ("second", "Moved here") in said
        page = site.client.get(f"/messages/{message}").text
        assert 'value="reprocess"' not in page
        listed = site.client.get("/messages?queue=first").text
        assert ("moved</span>" in listed, "dead</span>" in listed) == (True, False)
        numbers = site.client.get("/metrics").text
        assert 'remuda_queue_entered_total{queue="first",state="dead"} 0.0' in numbers


def test_b15_who_changed_a_queue_is_told(site: Site) -> None:
    """B15, Q14: by the API, on the queue's page, and in the life of a message that was forgotten."""
    id, broker = site.publish("order.placed", 1), site.bus.broker
    broker.clear("orders", who="ann")
    broker.forget("orders", who="ann")
    broker.set_status("orders", "paused", who="ben")
    broker.configure_queue("orders", who="cat", message_limit=7)
    changes = site.client.get("/api/v1/queues/orders/changes").json()["changes"]
    assert [(one["what"], one["who"]) for one in changes] == [
        ("options changed", "cat"), ("status set to paused", "ben"), ("dead letter forgotten", "ann"),
    ]  # fmt: skip
    assert len(site.client.get("/api/v1/queues/orders/changes?limit=1").json()["changes"]) == 1
    assert site.client.get("/api/v1/queues/nobody/changes").status_code == 404
    page = site.client.get("/queues/orders").text
    assert "Changes by operators" in page
    assert "status set to paused</td><td>ben" in page
    assert site.client.get(f"/api/v1/messages/{id}").json()["timeline"][-1]["who"] == "ann"


def test_t1_topics_and_the_producers_time_are_published_and_shown(site: Site) -> None:
    """T4, M2: under the same names on every face."""
    moment = 1_700_000_000_000_000
    site.bus.broker.create_queue("audit", type="pull", patterns=["audit.*"])
    id = site.publish("order.placed", {"n": 1}, topics=["order.placed", "audit.orders"], timestamp=moment)
    rows = site.client.get("/api/v1/messages?topic=audit").json()["messages"]
    assert [(row["id"], row["queue"]) for row in rows] == [(id, "audit"), (id, "orders")]
    assert {(row["name"], tuple(row["topics"]), row["topicCount"], row["timestamp"]) for row in rows} == {
        ("order.placed", ("order.placed", "audit.orders"), 2, moment)
    }
    assert site.pull("audit")["messages"][0]["topics"] == ["order.placed", "audit.orders"]
    for wrong in ("audit", [5], ["a.*"], [""]):
        assert site.client.post("/api/v1/messages", json={"topic": "x", "topics": wrong}).status_code == 400
    assert site.client.get("/api/v1/messages?state=moved").json()["messages"] == []


def test_m7_an_unchanged_message_shows_its_flags(site: Site) -> None:
    ids = [site.publish("order.placed", 1, object="order", key="1") for _ in range(2)]
    told = site.client.get(f"/api/v1/messages/{ids[1]}").json()["document"]
    assert (told["state"], told["archived"], told["queued"], told["success"]) == ("U", True, False, False)
    (row,) = site.client.get("/api/v1/messages?state=unchanged").json()["messages"]
    assert (row["id"], row["queue"], row["archived"], row["delivered"]) == (ids[1], None, True, False)


def test_b20_a_waiting_message_is_cancelled_by_its_id(site: Site) -> None:
    """B22: as bus.cancel and remuda cancel, and who did it is on record."""
    id = site.publish("order.placed", 1)
    cancel = f"/api/v1/messages/{id}/cancel"
    assert site.client.post(cancel).json() == {"cancelled": 1, "status": "dead"}
    assert site.client.post(cancel).json() == {"cancelled": 0, "status": "dead"}
    assert site.client.post("/api/v1/messages/nobody/cancel").status_code == 404
    assert site.queue("orders")["waiting"] == 0
    events = site.client.get("/api/v1/log?kind=events&from=0").json()["entries"]
    assert [event["who"] for event in events if event.get("reason") == "cancelled"] == ["local"]
