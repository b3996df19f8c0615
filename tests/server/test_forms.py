"""U1: what the buttons of a queue's page do, as a browser sends their forms."""

from __future__ import annotations

import re

import pytest

from remuda import Bus
from remuda.model.queues.options import QueueOptions
from tests.server.site import Site, serving


def act(site: Site, **form: str) -> str:
    """Press a button on the queue's page; gives what the next page says."""
    token = re.search(r'name="csrf" value="([^"]+)"', site.client.get("/queues/orders").text)
    assert token is not None
    answer = site.client.post("/queues/orders", data={"csrf": token[1], **form}, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_clear_all_takes_filters(site: Site) -> None:
    """B15: from the web page too, by topic, reason and time."""
    for topic in ("order.placed", "order.paid", "order.paid"):
        site.publish(topic, 1)
    assert "0 messages cleared" in act(site, action="clear", confirm="orders", until="2001-01-01T00:00")
    assert "0 messages cleared" in act(site, action="clear", confirm="orders", reason="no stock")
    assert "2 messages cleared from orders." in act(
        site, action="clear", confirm="orders", topic="order.paid", reason="", since=""
    )
    assert "1 message cleared from orders." in act(
        site, action="clear", confirm="orders", topic="", reason="", since="", until=""
    )
    assert site.queue("orders")["dead"] == 3


def test_reprocess_failed_and_dead_sends_back_both(site: Site) -> None:
    """B15, U1"""
    for answer, more in (("dead", {}), ("retry", {"after": "1h"})):
        site.publish("order.placed", 1)
        pulled = site.pull("orders")
        site.client.post(f"/api/v1/deliveries/{pulled['delivery']}/{answer}", json=more).raise_for_status()
    page = site.client.get("/queues/orders").text
    form = re.search(r'<form[^>]*>(?:(?!</form>).)*value="reprocess"(?:(?!</form>).)*</form>', page, re.DOTALL)
    assert form is not None
    assert 'data-ask="Send 1 dead letter, and what waits for a retry, back to orders?"' in form[0]
    fields = dict(re.findall(r'<input type="hidden" name="(scope|waiting)" value="(\w+)">', form[0]))
    assert "2 messages back in orders." in act(site, action="reprocess", **fields)
    assert site.queue("orders")["waiting"] == 2


def test_pause_keeps_taking_messages_and_resume_is_offered(site: Site) -> None:
    """U1, Q14"""
    assert "orders is paused; it still accepts messages." in act(site, action="pause")
    site.publish("order.placed", 1)
    page = site.client.get("/queues/orders").text
    assert 'value="resume"' in page
    assert 'value="pause"' not in page
    assert "orders is running" in act(site, action="resume")


def test_b3_a_queues_page_says_how_it_is_set_and_where() -> None:
    """B3, U1: as `remuda config` does, for the handlers of this process."""
    bus = Bus(settings={"message.threads": 2, "message.timeout.staging": "5s"}, prefix="my.")
    bus.subscribe("x", queue="staging", retry=["1m", "1h"])(lambda body: None)
    with bus, serving(bus) as site:
        page = re.sub(r"\s+", " ", site.client.get("/queues/my.staging").text)
        for row in (
            ("message.retry", "1m, 1h", "handler"), ("message.threads", "2", "code"), ("message.timeout", "5s", "code"),
            ("message.failover", "none", "default"), ("message.queue.size", "500", "default"),
        ):  # fmt: skip
            assert "<tr>" + "".join(f"<td>{value}</td>" for value in row) + "</tr>" in page
        assert "Settings of its handlers" not in site.client.get("/queues/remuda.unrouted").text


def sent(site: Site, page: str, **form: str) -> tuple[int, str]:
    """Send a page's form; gives what the next page says."""
    token = re.search(r'name="csrf" value="([^"]+)"', site.client.get(page).text)
    assert token is not None
    answer = site.client.post(page, data={"csrf": token[1], **form}, follow_redirects=True)
    return answer.status_code, answer.text


EVERY = {
    "type": "push", "acknowledge": "just-request", "acknowledge_timeout": "20s", "commit_when": "sent",
    "message_timeout": "1h", "expired_queue": "late", "message_limit": "7", "limit_exceeded": "delete-oldest",
    "byte_limit": "1000000", "message_size_limit": "5000", "client_limit": "3", "delay_between_messages": "10ms",
    "put_back": "priority", "put_back_delay": "2s", "auto_destroy": "empty", "unique_ids": "yes",
    "persistence": "memory", "confirmations": "2", "queue_size": "50", "topics": "audit, bill.late",
    "patterns": "order.*.eu, #.late", "delivery_limit": "4", "dead_letter_queue": "dead", "max_priority": "9",
}  # fmt: skip
FLOW = {
    "single_active_consumer": "yes", "flow_key": "header:tenant", "ordered": "yes", "on_retry": "pass",
    "concurrency": "5", "concurrency_per_key": "2", "limits": "db=3, mail=10/m", "rate": "100/s", "rate_per_key": "5/s",
    "key_limits": "ann=3/s", "fair": "yes", "weights": "ann=3, bob=2", "debounce": "5s", "max_wait": "1m",
}  # fmt: skip
REST = {"throttle": "5s", "singleton": "no"}


@pytest.mark.parametrize("asked", [EVERY, FLOW, REST, {"singleton": "skip"}])
def test_q13_a_page_creates_a_queue_with_every_option(site: Site, asked: dict[str, str]) -> None:
    status, page = sent(site, "/create-queue", name="my/queue", **asked)
    assert status == 200, page
    assert "my/queue was created." in page
    found = site.bus.broker.queue("my/queue").options
    wanted = {name: {"yes": True}.get(value, value) for name, value in asked.items()}
    split = {"topics", "patterns"} & asked.keys()
    whole = {name: int(value) for name, value in asked.items() if value.isdigit()}
    assert found == QueueOptions.parse({**wanted, **whole, **{name: asked[name].split(", ") for name in split}})
    assert "exists already, with these options" in sent(site, "/create-queue", name="my/queue", **asked)[1]
    assert sent(site, "/create-queue", name="my/queue", message_limit="8")[0] == 400


def test_q13_the_page_asks_for_every_option_there_is(site: Site) -> None:
    page = site.client.get("/create-queue").text
    assert set(re.findall(r'<(?:input|select) name="(\w+)"', page)) >= {"name", *QueueOptions.__struct_fields__}
    assert {*EVERY, *FLOW, *REST} == set(QueueOptions.__struct_fields__)
    for wrong in ({"name": ""}, {"name": "q", "type": "sideways"}, {"name": "q", "fair": "maybe"},
                  {"name": "q", "rate": "fast"}, {"name": "q", "message_limit": "-1"}):  # fmt: skip
        assert sent(site, "/create-queue", **wrong)[0] == 400
    assert 'href="/create-queue"' in site.client.get("/").text


def test_m2_t1_a_page_publishes_under_several_topics_and_shows_them_with_flags_and_times(site: Site) -> None:
    """M7: also of a message that came into no queue."""
    form = {
        "topic": "order.placed", "topics": "order.big, audit.order", "timestamp": "2026-05-01T10:30:00.250",
        "mime_type": "text/plain", "body": "x", "object": "order", "key": "7",
    }  # fmt: skip
    for state in ("queued", "unchanged"):
        status, page = sent(site, "/publish", **form)
        assert status == 200, page
        flat = re.sub(r"\s+", " ", page)
        for topic in ("order.placed", "order.big", "audit.order"):
            assert f'<code class="topic">{topic}</code>' in flat
        assert "2026-05-01 10:30:00" in flat
        flags = dict(re.findall(r"<dt>(queued|delivered|success|archived)</dt><dd>(yes|no)</dd>", flat))
        assert flags == {
            "queued": "yes" if state == "queued" else "no", "delivered": "no", "success": "no",
            "archived": "no" if state == "queued" else "yes",
        }  # fmt: skip
    far = site.bus.publish("order.far", 1, timestamp=2**63 - 1)
    assert f"{2**63 - 1} microseconds since 1970" in site.client.get(f"/messages/{far}").text
