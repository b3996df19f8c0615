"""U1, U2: wrong types, odd characters and too much of everything, at every page and in every field: never a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from remuda.bus.bus import Bus
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


@pytest.mark.parametrize(
    "path", ["/queues/", "/messages/", "/parts/queues/", "/data/queues/", "/api/v1/queues/", "/api/v1/messages/"]
)
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
