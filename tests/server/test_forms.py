"""U1: what the buttons of a queue's page do, as a browser sends their forms."""

from __future__ import annotations

import re

from tests.server.site import Site


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
    assert "0 messages ended" in act(site, action="clear", confirm="orders", until="2001-01-01T00:00")
    assert "0 messages ended" in act(site, action="clear", confirm="orders", reason="no stock")
    assert "2 messages ended" in act(site, action="clear", confirm="orders", topic="order.paid", reason="", since="")
    assert "1 message ended" in act(site, action="clear", confirm="orders", topic="", reason="", since="", until="")
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
    assert "disabled" not in form[0]
    fields = dict(re.findall(r'<input type="hidden" name="(scope|waiting)" value="(\w+)">', form[0]))
    assert "2 messages sent back" in act(site, action="reprocess", **fields)
    assert site.queue("orders")["waiting"] == 2


def test_pause_keeps_taking_messages_and_resume_is_offered(site: Site) -> None:
    """U1, Q14"""
    assert "orders is paused. It still accepts messages." in act(site, action="pause")
    site.publish("order.placed", 1)
    page = site.client.get("/queues/orders").text
    assert 'value="resume"' in page
    assert 'value="pause"' not in page
    assert "orders is running" in act(site, action="resume")
