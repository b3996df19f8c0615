"""U1 U4: the page of one message: its body for reading, its attempts, and the command that publishes it again."""

from __future__ import annotations

import html
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from playwright.sync_api import expect

from remuda import Bus, Message
from remuda.bus.publishing.command_line import quoted
from remuda.model.state import State
from remuda.server.http.pages.waterfall import attempts, bars
from remuda.server.http.security.users import Role, User
from remuda.server.http.service_values import TimelineEntry
from tests.server.site import Site, serving, until
from tests.servers.browser import Watched, browser, watched

__all__ = ["browser", "watched"]

HOSTILE = 'it\'s $(touch hacked) `touch hacked` "q" \\ !x; & | <b>%s \x1b[2J\x1b[201~\nrm -rf .\r\u202e é 🐎'
FIELDS = ("name", "body", "topics", "object", "key", "mime_type", "headers", "priority", "timestamp")
MESSAGES = {
    "plain": Message("order.placed", b'{"n":1}', mime_type="application/json", headers={"cap-msg-type": "dict"}),
    "untyped": Message("order.placed", b'{"n": 1.50, "big": 123456789012345678901}', mime_type="application/json"),
    "text": Message("order.placed", HOSTILE.encode(), mime_type="text/plain", key=HOSTILE, object="-o"),
    "bytes": Message("order.placed", bytes(range(256)), priority=10, timestamp=1_700_000_000_123_456),
    "zero": Message("order.placed", b"a\0b\n\n", mime_type="text/plain"),
    "packed": Message("order.placed", msgspec.msgpack.encode({"a": b"\xff"}), mime_type="application/msgpack"),
    "negative": Message("order.placed", b"-5", mime_type="application/json", headers={"cap-msg-type": "int"}),
    "null": Message("order.placed", b"null", mime_type="application/json", topics=("order.placed", "also.here")),
    "dash": Message("order.placed", b"-", headers={"x-y": HOSTILE, "empty": "", "cap-callback-name": "order.done"}),
    "nothing": Message("order.placed", b"", mime_type="text/plain"),
}


def _page(site: Site, id: str) -> str:
    answer = site.client.get(f"/messages/{quote(id, safe='')}")
    assert answer.status_code == 200, answer.text
    return answer.text


def _body(site: Site, body: bytes, mime_type: str) -> str:
    """What the page shows of a body, with its kind before it."""
    (id,) = site.bus.publish_messages(Message("order.placed", body, mime_type=mime_type))
    found = re.search(r"<h2>Body</h2>(.*?)</section>", _page(site, id), re.DOTALL)
    assert found is not None
    return html.unescape(re.sub("<[^>]*>", "", found[1])).strip()


def _command(site: Site, id: str) -> str | None:
    found = re.search(r'data-copy="([^"]*)" aria-label="Copy as remuda publish"', _page(site, id))
    return None if found is None else html.unescape(found[1])


def _run(lines: Iterable[str | None], folder: Path) -> list[str]:
    """Give lines to a real shell; the answer is the ids of the messages."""
    line = "\n".join(map(str, lines))
    script = f'remuda() {{ "$PYTHON" -m remuda.cli "$@"; }}\n{line}\n'
    root = Path(__file__).parents[2] / "src"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{line}\n{ran.stderr}"
    return ran.stdout.split()


def _same(found: Message, wanted: Message) -> None:
    for field in FIELDS:
        assert getattr(found, field) == getattr(wanted, field), field


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Site]:
    """A bus in a directory, with every message above."""
    with Bus(tmp_path / "it's data") as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        for id, message in MESSAGES.items():
            bus.publish_messages(msgspec.structs.replace(message, id=id))
        with serving(bus) as site:
            yield site


def test_u1_a_body_is_shown_by_its_type(site: Site) -> None:
    """U1 M1"""
    shown = _body(site, b'{"n":[1,123456789012345678901234567890]}', "application/json; charset=utf-8")
    assert shown == 'JSON\n{\n  "n": [\n    1,\n    123456789012345678901234567890\n  ]\n}'
    packed = msgspec.msgpack.encode({"a": b"\x01\xff", 7: [float("nan"), None], "e": msgspec.msgpack.Ext(5, b"x")})
    shown = _body(site, packed, "application/x-msgpack")
    assert shown == ("MessagePack\n{\n  \"a\": h'01ff',\n  7: [\n    NaN,\n    null\n  ],\n  \"e\": ext(5, h'78')\n}")
    assert _body(site, "naïve\r\n<i>".encode(), "text/plain") == "text\nnaïve\n<i>"
    dumped = "00000000  ff 00 41".ljust(57) + "  ..A"
    assert _body(site, b"\xff\0A", "application/octet-stream") == f"bytes\n{dumped}"
    assert _body(site, b"\x93", "application/msgpack").startswith("bytes\n00000000  93")
    assert _body(site, b"{nothing", "application/json") == "text\n{nothing"
    assert _body(site, b"", "application/json") == "The body is empty."


def test_u1_a_hostile_body_is_only_text_and_bounded(site: Site) -> None:
    """U1: what is shown cannot be mistaken, nor grow beyond what was sent."""
    assert "a\\u202eb\\x1b[2J" in _body(site, "a\u202eb\x1b[2J".encode(), "text/plain")
    packed = msgspec.msgpack.encode({"<script>": "</pre><script>"})
    (id,) = site.bus.publish_messages(Message("order.placed", packed, mime_type="application/msgpack"))
    assert "<script>:" not in _page(site, id)
    assert "&lt;/pre&gt;&lt;script&gt;" in _page(site, id)
    deep = b"[" * 30_000 + b"]" * 30_000
    wide = b"[" * 90 + b",".join([b"1"] * 20_000) + b"]" * 90
    long_list = b"\xdd\x00\x00\xff\x00" + b"\xc0" * 65_280
    for body, mime_type, rest in (
        (deep, "application/json", False), (wide, "application/json", True), (b"x" * 3_000_000, "text/plain", True),
        (long_list, "application/msgpack", True), (b"\x91" * 60_000, "application/msgpack", True),
        (b"\xff" * 3_000_000, "", True), (b"\xdf\xff\xff\xff\xff", "application/msgpack", False),
    ):  # fmt: skip
        shown = _body(site, body, mime_type)
        assert len(shown) < 70_000
        assert ("The rest is not shown" in shown) is rest, shown[:100]


def test_u1_the_copied_line_publishes_the_same_message_in_a_real_shell(directory: Site, tmp_path: Path) -> None:
    """U1 U3: whatever is in it, and without a trace of what it says."""
    lines = {id: _command(directory, id) for id in MESSAGES}
    address = tmp_path / "it's data"
    place = quoted(str(address))
    assert lines["plain"] == f"remuda publish {place} order.placed '{{\"n\":1}}'"
    assert lines["negative"] == f"remuda publish -- {place} order.placed -5"
    assert lines["packed"] is not None
    assert " | base64 -d | remuda publish --mime-type=application/msgpack " in lines["packed"]
    for line in lines.values():
        assert line is not None
        assert line.isprintable()
    made = dict(zip(MESSAGES, _run(lines.values(), tmp_path), strict=True))
    for id, new in made.items():
        assert new != id
        _same(directory.bus.broker.message(new).message, directory.bus.broker.message(id).message)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["it's data"]


def test_u1_any_text_is_one_word_of_the_shell(tmp_path: Path) -> None:
    """U1"""
    chance = random.Random(5)
    letters = "ab '\"\\$`!~*?[]{}()<>|&;#%=-\n\t\r\x01\x1b\x7f\x85\u00a0\u202e\ufeffé🐎0123"
    texts = ["".join(chance.choices(letters, k=chance.randrange(12))) for _ in range(2000)]
    words = " ".join(map(quoted, texts))
    assert words.isprintable()
    (tmp_path / "words.sh").write_text(f"printf '%s\\0' {words}")
    printed = subprocess.run(["bash", "words.sh"], cwd=tmp_path, capture_output=True, check=True, timeout=60).stdout
    assert printed.decode().split("\0")[:-1] == texts


def test_u1_no_line_shows_a_secret_or_is_made_where_none_would_work(directory: Site, site: Site) -> None:
    """U1"""
    headers = {"authorization": "Bearer geheim", "a=b": "1", "x": "2"}
    (id,) = directory.bus.publish_messages(Message("order.placed", b"x", headers=headers))
    line = _command(directory, id)
    assert line is not None
    assert "geheim" not in _page(directory, id)
    assert line.startswith("printf %s x | remuda publish --header=x=2 ")
    assert "Not in it: the headers authorization, a=b." in _page(directory, id)
    for message in (
        Message("order.placed", b"x" * 100_000), Message("order.placed", b"x", key="a\0"),
        Message("order.placed", b"x", timestamp=1 << 61), Message("order.placed", b"x", mime_type=""),
    ):  # fmt: skip
        (id,) = directory.bus.publish_messages(message)
        assert _command(directory, id) is None, message
    assert _command(site, site.publish("order.placed", 1)) is None
    with serving(directory.bus, identify=lambda request: User("eve", Role.VIEWER)) as viewers:
        assert _command(viewers, "plain") is None


def _bars(page: str) -> list[tuple[str, float, float]]:
    """Of each bar of the waterfall: its class, where it begins and where it ends, in percents."""
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="\d" width="([\d.]+)%"', page)
    return [(tone, float(left), float(left) + float(width)) for tone, left, width in found]


def _rows(page: str) -> list[list[str]]:
    """The text of each line of the waterfall."""
    table = re.search(r'<table class="waterfall cards-on-phone">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert table is not None
    rows = table[1].split("</tr>")[:-1]
    return [[re.sub("<[^>]*>", "", one).strip() for one in re.split("</t[dh]>", row)[:-2]] for row in rows]


def test_u1_attempts_stand_against_the_schedule() -> None:
    """U1 U4: a retry that is still to come is on the line of time, and one that was sent back sooner ends there."""
    with Bus() as bus:

        @bus.subscribe("order.placed", queue="orders", retry=["1h", "2h"])
        def place(body: Any) -> None:
            raise ValueError("no stock")

        bus.start()
        with serving(bus) as site:
            id = bus.publish("order.placed", 1)
            until(lambda: site.queue("orders")["delayed"] == 1, "its delay")
            page = _page(site, id)
            rows = _rows(page)
            assert [row[:3] for row in rows] == [["orders retry", "attempt", "1"], ["orders", "sleep", ""]]
            assert rows[1][4] in ("1 h", "59 min 59 s")
            (first, *_, delay) = [bar for bar in _bars(page) if bar[0] != "delay"]
            assert (first[0], first[2] < 5) == ("bad", True)
            assert (delay[0], delay[1] < 5, delay[2] > 99.9) == ("sleep", True, True)
            assert site.client.post("/api/v1/queues/orders/reprocess", json={}).status_code == 200
            until(lambda: len(_rows(_page(site, id))) == 4, "its second attempt")
            until(lambda: site.queue("orders")["delayed"] == 1, "its second delay")
            rows = _rows(_page(site, id))
            assert [row[1] for row in rows] == ["attempt", "sleep", "attempt", "sleep"]
            assert "h" not in rows[1][4].split(), "it was sent back before the hour was over"


def test_u1_what_comes_later_than_its_schedule_has_waited() -> None:
    """U1: also where the queue itself was late to take it out of its delay."""
    entries = [
        TimelineEntry(0, "q", State.QUEUED, "Queued"),
        TimelineEntry(5, "q", State.FETCHED, "began", attempt=1, waited=5),
        TimelineEntry(9, "q", State.RETRY, "failed", attempt=1, due=20, took=4),
        TimelineEntry(23, "q", State.QUEUED, "back"),
        TimelineEntry(24, "q", State.FETCHED, "began", attempt=2, waited=1),
    ]
    made = [(one.kind, one.start, one.end, one.waited, one.attempt, one.error) for one in attempts(entries)]
    assert made == [
        ("attempt", 5, 9, 5, 1, "retry"), ("sleep", 9, 20, 0, 1, None), ("attempt", 24, None, 4, 2, None)
    ]  # fmt: skip
    places = [(one.left, one.wait, one.width) for one in bars(attempts(entries), 0, 40)]
    assert places == [(0.0, 12.5, 10.0), (22.5, 0.0, 27.5), (50.0, 10.0, 40.0)]


def test_u1_a_message_that_waits_for_its_time_and_one_nobody_took(site: Site) -> None:
    """U1: the bars begin when the message was published."""
    id = site.bus.publish("order.placed", 1, delay="4h")
    page = _page(site, id)
    (row,) = _rows(page)
    assert (row[:2], row[4] in ("4 h", "3 h 59 min")) == (["orders", "sleep"], True)
    assert [(tone, left < 1, right > 99.9) for tone, left, right in _bars(page)] == [("sleep", True, True)]
    assert "Attempts and when they ran" not in _page(site, site.publish("order.placed", 1))


def test_u1_what_was_edited_is_shown_line_by_line(site: Site) -> None:
    """U1 U4: against the message that was edited; an answer to a message is not taken for one."""
    headers = {"cap-corr-seq": "1", "password": "geheim", "a": "1"}
    sent = Message("order.placed", b'{"n":1,"to":"<i>Rome"}', mime_type="application/json", headers=headers)
    (before,) = site.bus.publish_messages(sent)
    asked = {"topic": "order.placed", "body": {"n": 1, "to": "Oslo"}}
    after = site.client.post(f"/api/v1/messages/{before}/resend", json=asked).json()["id"]
    told = _page(site, after)
    found = re.search(r'<pre class="diff".*?>(.*?)</pre>', told, re.DOTALL)
    assert found is not None
    lines = [line for line in found[1].splitlines() if line.startswith(("<ins>", "<del>"))]
    assert lines == [
        "<del>-   &#34;to&#34;: &#34;&lt;i&gt;Rome&#34;</del>", "<ins>+   &#34;to&#34;: &#34;Oslo&#34;</ins>"
    ]  # fmt: skip
    assert "geheim" not in told
    same = site.client.post(f"/api/v1/messages/{before}/resend").json()["id"]
    assert "Nothing was changed." in _page(site, same)
    answer = site.publish("order.charged", 5, headers={"cap-corr-id": before})
    for other in (answer, before):
        assert "Sent again from" not in _page(site, other)


def test_u1_the_page_in_a_browser(directory: Site, watched: Watched, tmp_path: Path) -> None:
    """U1: hostile content is text, the line is copied as it stands, and nothing scrolls sideways on a phone."""
    site = directory
    pulled = site.pull("orders", count=20)
    assert site.client.post(f"/api/v1/deliveries/{pulled['delivery']}/dead", json={"reason": "<b>no"}).status_code < 300
    page = watched.page
    page.goto(f"{site.address}/messages/text")
    rows = page.get_by_role("region", name="Attempts and when they ran").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("orders dead")
    expect(page.locator("pre.body")).to_contain_text("<b>%s \\x1b[2J")
    line = page.locator("pre.command").inner_text()
    page.get_by_role("button", name="Copy as remuda publish").click()
    page.goto(f"{site.address}/publish")
    page.locator("textarea[name=body]").fill("")
    page.locator("textarea[name=body]").focus()
    page.keyboard.press("Control+V")
    copied = page.locator("textarea[name=body]").input_value()
    assert copied == line == _command(site, "text")
    (new,) = _run([copied], tmp_path)
    _same(site.bus.broker.message(new).message, site.bus.broker.message("text").message)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{site.address}/messages/text")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
