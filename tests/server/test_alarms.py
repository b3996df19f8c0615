"""U4: alarms by rule, on their page, over HTTP, and told by `remuda watch` to a webhook and by mail."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from remuda.bus.bus import Bus
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import MINUTE
from remuda.server.alerts.rules import Watch, read_rules
from remuda.server.http.service import MessagingService
from remuda.server.http.service_values import QueueSummary
from tests.cli.kit import runner, start, wait_for
from tests.server.site import serving, until
from tests.servers.browser import Watched, accepting, browser, watched

__all__ = ["browser", "watched"]


def queue(name: str, waiting: int = 0, consumers: int = 0, oldest: int | None = None, **ended: int) -> QueueSummary:
    dead, invalid, not_interested = (ended.get(kind, 0) for kind in ("dead", "invalid", "not_interested"))
    return QueueSummary(
        name, "running", "pull", waiting, 0, 0, dead, invalid, not_interested, consumers, 0, 0, 0, oldest=oldest
    )


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("q: waiting > 10", queue("q", waiting=10), queue("q", waiting=11)),
        ("q*: oldest > 10m", queue("qa", waiting=1, oldest=90 * MINUTE), queue("qa", waiting=1, oldest=89 * MINUTE)),
        ("*: dead letters > 2", queue("q", dead=1, invalid=1), queue("q", dead=1, invalid=1, not_interested=1)),
        ("*: no consumer", queue("q", waiting=5, consumers=1), queue("q", waiting=5)),
        ("*: no consumer", queue("q"), queue("q", waiting=1)),
        ("a: waiting > 0", queue("b", waiting=1), queue("a", waiting=1)),
    ],
)
def test_u4_rules_are_broken_by_what_they_name(rule: str, good: QueueSummary, bad: QueueSummary) -> None:
    """U4: depth, age, dead letters, no consumer."""
    watch = Watch(read_rules([rule]))
    now = 100 * MINUTE
    assert watch.judge([good], lambda since: {}, now) == []
    (change,) = watch.judge([bad], lambda since: {}, now)
    assert (change.began, change.alarm.queue, change.alarm.rule) == (True, bad.name, rule)
    assert watch.judge([bad], lambda since: {}, now) == []
    (over,) = watch.judge([good], lambda since: {}, now)
    assert (over.began, watch.alarms) == (False, ())


def test_u4_dead_letters_are_counted_in_a_time_and_alarms_wait_for_theirs() -> None:
    """U4"""
    watch = Watch(read_rules(["# comment", "", "q: dead letters > 5 in 10m for 1m"]))
    asked: list[int] = []

    def dead_since(since: int) -> dict[str, int]:
        asked.append(since)
        return {"q": 6}

    assert watch.judge([queue("q")], dead_since, 20 * MINUTE) == []
    assert asked == [10 * MINUTE]
    (change,) = watch.judge([queue("q")], dead_since, 21 * MINUTE)
    assert change.alarm.since == 20 * MINUTE


@pytest.mark.parametrize(
    "line",
    ["q waiting > 1", "q: waiting > many", "q: depth > 1", "q: oldest > 5 parsecs", "q: waiting > 1 in 10m",
     "q: dead letters > 1 in 1s", ": waiting > 1", "q: waiting > 1 for ever", "q: no consumer > 1"],
)  # fmt: skip
def test_u4_a_mistaken_rule_is_refused(line: str) -> None:
    """U4"""
    with pytest.raises(InvalidOption):
        read_rules([line])


def test_u4_alarms_on_the_page_and_over_http(tmp_path: Path, watched: Watched) -> None:
    """U4: the rules are read from the directory."""
    hostile = "<script>window.hacked=1</script>"
    with Bus(tmp_path) as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.#"])
        (tmp_path / "alerts.txt").write_text(f"orders: waiting > 2\n{hostile}: no consumer\n")
        with serving(bus) as site:
            assert site.client.get("/api/v1/alarms").json()["alarms"] == []
            bus.publish_many("order.x", [1, 2, 3])
            (alarm,) = until(lambda: site.client.get("/api/v1/alarms").json()["alarms"], "the alarm")
            assert (alarm["queue"], alarm["what"]) == ("orders", "3 messages wait")
            page = watched.page
            page.goto(f"{site.address}/")
            page.get_by_role("link", name="1 alarm", exact=True).press("Enter")
            expect(page.get_by_role("region", name="Alarms")).to_contain_text("3 messages wait")
            expect(page.get_by_text(hostile)).to_be_visible()
            bus.broker.clear("orders")
            expect(page.get_by_role("heading", name="No alarm")).to_be_visible()
            bus.publish("order.x", 4)
            (tmp_path / "alerts.txt").write_text("orders: waiting > many\n")
            expect(page.get_by_text("'many' is not a whole number")).to_be_visible()
            (tmp_path / "alerts.txt").write_text("orders: waiting > 0\n")
            expect(page.get_by_role("region", name="Alarms")).to_contain_text("1 message waits")
            (tmp_path / "alerts.txt").unlink()
            expect(page.get_by_role("heading", name="No rules")).to_be_visible()


def test_u4_from_an_alarm_to_a_thousand_letters_sent_back(tmp_path: Path, watched: Watched) -> None:
    """U4 U1: six clicks, by what stands on the pages, and no longer than a minute."""
    with Bus(tmp_path) as bus:
        for name in ("orders", "others"):
            bus.broker.create_queue(name, type="pull", patterns=[f"{name}.#"], acknowledge="just-request")
        (tmp_path / "alerts.txt").write_text("*: dead letters > 500 in 10m\n")
        bus.publish_many("orders.x", list(range(1000)))
        taken = bus.broker.pull("orders", 1000)
        assert taken is not None
        taken.dead(reason="ConnectionError: the bank does not answer")
        with serving(bus) as site:
            until(lambda: site.client.get("/api/v1/alarms").json()["alarms"], "the alarm")
            began = time.monotonic()
            page = watched.page
            asked: list[str] = []
            page.on("dialog", accepting(asked))
            page.goto(site.address)
            page.get_by_role("link", name="1 alarm", exact=True).click()
            page.get_by_role("region", name="Alarms").get_by_role("link", name="orders").click()
            page.get_by_role("link", name="1,000").first.click()
            page.get_by_role("button", name="Retry group of 1000: ConnectionError").click()
            expect(page.get_by_role("status")).to_contain_text("1,000 messages back in orders")
            assert asked == ["Send 1,000 messages back to orders?"]
            assert bus.broker.queue("orders").waiting == 1000
            page.get_by_role("link", name="Alarms", exact=True).click()
            assert time.monotonic() - began < 60


def test_u4_rules_are_watched_from_the_start_of_the_server(tmp_path: Path) -> None:
    """U4: not from the first look at a page, or what must last would begin then."""
    with Bus(tmp_path) as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.#"])
        bus.publish("order.x", 1)
        (tmp_path / "alerts.txt").write_text("orders: waiting > 0\n")
        service = MessagingService(bus)
        with serving(bus, service=service):
            until(lambda: service.watch.alarms, "the alarm")


class Mailbox(socketserver.StreamRequestHandler):
    """As much of SMTP as takes in a mail."""

    mails: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line.split()[0].upper() if line.split() else b""
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                self.mails.append(b"".join(lines).decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")


@contextmanager
def listening(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def test_u4_watch_tells_a_webhook_and_by_mail_what_begins_and_ends(tmp_path: Path) -> None:
    """U4 U3: also after the webhook has refused once."""
    posted: list[dict[str, object]] = []
    refusals = [503]

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = refusals.pop() if refusals else 204
            if status == 204:
                posted.append(json.loads(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    mails: list[str] = []
    mailbox = type("Box", (Mailbox,), {"mails": mails})
    with (
        Bus(tmp_path / "data") as bus,
        listening(HTTPServer(("127.0.0.1", 0), Hook)) as hook,
        listening(socketserver.ThreadingTCPServer(("127.0.0.1", 0), mailbox)) as smtp,
    ):
        bus.broker.create_queue("orders", type="pull", patterns=["order.#"])
        bus.publish("order.x", 1)
        process = start(
            tmp_path, "watch", "data", "--rule", "orders: waiting > 0", "--every", "100ms", "--webhook",
            f"http://127.0.0.1:{hook}/", "--allow-private", "127.0.0.0/8", "--mail", "ann@example.org", "--smtp",
            f"127.0.0.1:{smtp}",
        )  # fmt: skip
        try:
            said = wait_for(process, "not told yet")
            assert "ALARM orders: 1 message waits" in said
            until(lambda: posted and mails, "the telling")
            bus.broker.clear("orders")
            until(lambda: len(posted) == 2 and len(mails) == 2, "the end")
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert [change["began"] for one in posted for change in one["changes"]] == [True, False]  # type: ignore[attr-defined]
        assert "Subject: Remuda: ALARM orders" in mails[0]


def test_u4_watch_looks_once_for_cron(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U4: exit 1 with an alarm."""
    remuda = runner(capsys)
    data = str(tmp_path / "data")
    with Bus(data) as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.#"])
        bus.publish("order.x", 1)
    asked = ("watch", data, "--once", "--json", "--rule")
    (line,) = remuda(*asked, "*: no consumer", code=1).values
    assert (line["queue"], line["began"]) == ("orders", True)
    assert remuda(*asked, "orders: waiting > 1").values == []
    assert "there are no rules" in remuda("watch", data, "--once", code=1).err
