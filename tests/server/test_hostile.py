"""U1, U2: wrong types, odd characters and too much of everything, at every page and in every field: never a 500."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from remuda.bus.bus import Bus
from remuda.model.message import Message
from remuda.model.queues.options import QueueOptions
from tests.server.site import Site, serving

HOSTILE = (
    "", " ", "0", "-1", "9" * 40, "1e9", "null", "\u202eevil", "<script>alert(1)</script>", "'; DROP TABLE x; --",
    "%00", "../../etc/passwd", "a" * 5000, "\U0001f40e", "{{7*7}}", "é\u0301", "x\ty",
)  # fmt: skip
PAGES = {
    "/": ("filter", "sort", "page"),
    "/messages": ("queue", "topic", "state", "since", "until", "object", "key", "text", "cursor"),
    "/dead": ("queue", "reason", "group"),
    "/tail": ("kind", "queue", "topic", "state"),
    "/latency": ("queue",),
    "/topics": ("filter",),
    "/outbox": ("status",),
    "/pipelines": ("table", "queue"),
    "/publish": ("topic", "queue"),
    "/data/pipelines": ("table", "queue"),
    "/data/excerpts": ("at",),
    "/api/v1/messages": ("queue", "topic", "state", "since", "until", "object", "key", "text", "cursor", "limit"),
    "/api/v1/queues": ("prefix", "cursor", "limit"),
    "/api/v1/log": ("kind", "from", "since", "queue", "topic", "state", "limit"),
}
WRONG: tuple[Any, ...] = (
    None, True, 1, -1.5, 10**30, "", "x" * 70_000, "\ud800", "\x00", [], [1], {}, {"a": 1}, {"": ""}, {"a": "\ud800"},
)  # fmt: skip
FIELDS = (
    "topic", "body", "text", "base64", "mimeType", "id", "object", "key", "headers", "priority", "delay", "expires",
    "callback", "unknown",
)  # fmt: skip
CHOICE = ("states", "reason", "since", "until", "offsets", "group", "unknown")
REQUESTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("POST", "/api/v1/queues/q/pull"): ("count", "wait", "consumer", "newest", "unknown"),
    ("POST", "/api/v1/queues/q/reprocess"): CHOICE,
    ("POST", "/api/v1/queues/q/forget"): ("states", "offsets"),
    ("POST", "/api/v1/queues/q/move"): ("to", "waiting", "choice", "unknown"),
    ("POST", "/api/v1/messages/known/resend"): (
        "queue", "topic", "body", "text", "base64", "mimeType", "headers", "forget", "unknown",
    ),
    ("POST", "/api/v1/deliveries/{token}/retry"): ("rows", "after", "reason", "to", "unknown"),
    ("POST", "/api/v1/deliveries/{token}/dead"): ("rows", "reason", "to"),
    ("PUT", "/api/v1/queues/made"): ("type", "patterns", "message_timeout", "unknown"),
    ("PATCH", "/api/v1/queues/configured"): (*QueueOptions.__struct_fields__, "unknown", "who", "name"),
}  # fmt: skip
"""Every request with a JSON body, and its fields."""
VALUES = (
    b"null", b"true", b"-1.5", b"1e300", b"9" * 400, b'"' + b"9" * 400 + b'"', b'"\\ud800"', b"[-9]",
    b'["\\ud800"]', b'{"a":{"b":[1]}}',
)  # fmt: skip


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Bus() as bus:
        bus.broker.create_queue("q", type="pull", patterns=["q.#"])
        for name in HOSTILE:
            if name.strip() and name.isprintable() and len(name) < 200:
                bus.broker.create_queue(name, type="pull", patterns=[f"hostile.{number}" for number in range(3)])
        bus.publish("q.x", HOSTILE[8], id="<b>id</b>", headers={"<i>": "<u>"})
        with serving(bus, lake="/nowhere") as made:
            yield made


def held(site: Site) -> int:
    """Messages in the queue, also those whose time has not come."""
    queue = site.queue("q")
    return int(queue["waiting"]) + int(queue["delayed"])


@pytest.mark.parametrize("path", PAGES)
def test_every_word_of_every_address(site: Site, path: str) -> None:
    for name in PAGES[path]:
        for value in HOSTILE:
            answer = site.client.get(path, params={name: value})
            assert answer.status_code in (200, 400, 404), (path, name, value, answer.text[:300])
            assert "html" not in answer.headers["content-type"] or "<script>alert(1)" not in answer.text


@pytest.mark.parametrize("path", ["/queues/", "/messages/", "/data/queues/", "/api/v1/queues/", "/api/v1/messages/"])
def test_every_name_in_a_path(site: Site, path: str) -> None:
    from urllib.parse import quote

    for value in HOSTILE:
        answer = site.client.get(path + quote(value, safe=""))
        assert answer.status_code in (200, 400, 404, 405, 307), (path, value, answer.text[:300])
        assert "html" not in answer.headers["content-type"] or "<script>alert(1)" not in answer.text


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("batch", [False, True])
def test_every_wrong_value_in_every_field_of_a_message(site: Site, field: str, batch: bool) -> None:
    """What is refused stores nothing, not even the good messages beside it."""
    good = {"topic": "q.good", "body": 1}
    for value in WRONG:
        before = held(site)
        try:
            wrong = msgspec.json.encode(
                {**good, field: value} if field != "body" else {"topic": "q.good", "body": value}
            )
        except UnicodeEncodeError:
            wrong = b'{"topic":"q.good","' + field.encode() + b'":"\\ud800"}'
        content = b"\n".join([msgspec.json.encode(good), wrong]) if batch else wrong
        kind = "application/x-ndjson" if batch else "application/json"
        answer = site.client.post("/api/v1/messages", content=content, headers={"content-type": kind})
        assert answer.status_code in (201, 400, 413, 422), (field, value, answer.text[:300])
        if answer.status_code >= 400:
            assert held(site) <= before, (field, value)  # some that were taken expire meanwhile


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff\xfe",
        b"{}" * 10,
        b"[" * 100_000,
        b'{"topic":' * 10_000,
        b"\n\n\n",
    ],
    ids=lambda content: repr(content[:12]),
)
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_what_is_no_message(site: Site, content: bytes, kind: str) -> None:
    answer = site.client.post("/api/v1/messages", content=content, headers={"content-type": kind})
    assert answer.status_code in (201, 400), answer.text[:300]


@pytest.mark.parametrize(
    "path", ["/queues/q", "/publish", "/outbox", "/messages/%3Cb%3Eid%3C%2Fb%3E/edit", "/login", "/logout"]
)
def test_forms_without_their_token_or_sense(site: Site, path: str) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    for content in (b"", b"action=clear", b"\xff\xfe", b"&" * 30_000, b"csrf=x&action=clear&confirm=q", b"=" * 1000):
        answer = site.client.post(path, content=content, headers=kind)
        assert 400 <= answer.status_code < 500, (path, content[:20], answer.status_code)
    assert site.queue("q")["status"] == "running"


@pytest.mark.parametrize(("method", "path"), REQUESTS, ids=lambda part: part)
def test_every_wrong_value_in_every_field_of_a_request(method: str, path: str) -> None:
    kind = {"content-type": "application/json"}
    with Bus() as bus:
        for queue in ("q", "configured"):
            bus.broker.create_queue(queue, type="pull")
        bus.broker.publish([Message("q.x", b"1", id="known"), Message("q.x", b"2")], queue="q")
        with serving(bus) as own:
            token = "none"
            for field in REQUESTS[method, path]:
                for value in VALUES:
                    if "{token}" in path and own.queue("q")["inFlight"] == 0:
                        token = own.pull("q", count=2)["delivery"] or token
                    content = b'{"' + field.encode() + b'":' + value + b"}"
                    answer = own.client.request(method, path.format(token=token), content=content, headers=kind)
                    assert answer.status_code in (200, 201, 400, 404, 409, 413), (field, value, answer.text[:300])
            assert own.client.get("/health/ready").status_code == 200
            own.client.post("/api/v1/messages?queue=q", json={"topic": "q.x"})
            assert own.pull("q")["messages"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "//evil.example/",
        "/%00", "/queues/..%2f..%2fetc", "/api/v1/queues/%ff%fe", "/api/v1/%2e%2e/%2e%2e/", "/" + "a/" * 3000,
        "/api/v1/messages/known?" + "x=1&" * 2000, "/?" + "%" * 500,
    ],
    ids=lambda path: path[:24],
)  # fmt: skip
def test_tricks_in_paths(site: Site, path: str) -> None:
    answer = raw(site, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), ends=False)
    assert answer[9:12] in (b"200", b"303", b"307", b"400", b"404", b"405"), answer[:200]
    assert b"root:" not in answer
    assert b"create_app" not in answer


POST = b"POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        POST + b'Content-Length: 100\r\n\r\n{"topic":"q.cut"}',
        POST + b'Transfer-Encoding: chunked\r\n\r\n11\r\n{"topic":"q.cut"}\r\n',
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b'Content-Length: 17\r\nContent-Length: 3\r\n\r\n{"topic":"q.cut"}',
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b'Content-Length: 17\r\nTransfer-Encoding: chunked\r\n\r\n{"topic":"q.cut"}',
        POST + b'Origin: http://[\r\nContent-Length: 17\r\n\r\n{"topic":"q.cut"}',
        POST + b"Content-Length: 17\r\nX-Long: " + b"x" * 1_000_000 + b'\r\n\r\n{"topic":"q.cut"}',
        b'POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{"topic":"q.cut"}',
        b"POST /api/v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        b'Content-Length: 17\r\n\r\n{"topic":"q.cut"}',
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(11),
)
def test_requests_that_are_cut_or_wrong_store_nothing(site: Site, request_: bytes) -> None:
    before = held(site)
    answer = raw(site, request_)
    assert not answer or answer[9:10] == b"4", answer[:200]
    assert held(site) <= before
    assert site.client.get("/health/ready").status_code == 200


def raw(site: Site, request: bytes, *, ends: bool = True) -> bytes:
    """What a client gets that sends this and then no more; that there is no more it may keep to itself."""
    host, _, port = site.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        pieces = []
        with contextlib.suppress(OSError):
            while piece := connection.recv(65536):
                pieces.append(piece)
    return b"".join(pieces)


def test_ten_thousand_topics_on_one_page() -> None:
    with Bus() as bus:
        for number in range(10_000):
            bus.broker.create_queue(f"queue.{number:05}", type="pull", patterns=[f"topic{number}.#"])
        with serving(bus) as site:
            answer = site.client.get("/topics")
            assert answer.status_code == 200
            assert "more; filter to see them" in answer.text
            assert len(answer.content) < 200_000
            assert "topic7777.#" in site.client.get("/topics?filter=topic7777").text
