"""G4 and F7 over HTTP and on pages: runs with their tree and waterfall, and what rules of flow hold back."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from remuda import Bus, Message, Run
from tests.server.site import Site, serving, until
from tests.servers.browser import Watched, accepting, browser, watched

__all__ = ["browser", "watched"]

TRIES: list[int] = []
GO_ON = threading.Event()


@pytest.fixture
def site() -> Iterator[Site]:
    """A bus with one workflow: a step that is undone, a sleep, and a step that works at its second attempt."""
    TRIES.clear()
    with Bus() as bus:

        @bus.workflow(name="order", retry="never")
        def order(run: Run, body: Any) -> str:
            run.step(lambda: "paid <b>", name="charge", undo=lambda value: TRIES.append(-1))
            run.sleep("1h" if body == "waits" else "1ms")
            if body == "holds":
                run.progress(1, 4, "a quarter")
                run.step(GO_ON.wait, 60, name="hold")
            run.step(lambda: _fails_once(body), name="ship")
            return "all"

        bus.start()
        with serving(bus) as made:
            yield made


def _fails_once(body: Any) -> str:
    TRIES.append(1)
    if body == "fails" and TRIES.count(1) == 1:
        raise ValueError("no truck")
    return "sent"


def _state(site: Site, id: str) -> str:
    word: str = site.client.get(f"/api/v1/workflows/{id}").json()["run"]["state"]
    return word


def _start(site: Site, id: str, body: str) -> None:
    for _ in range(2):  # the id starts it once
        answer = site.client.post("/api/v1/workflows", json={"workflow": "order", "body": body, "id": id})
        assert (answer.status_code, answer.json()["id"]) == (201, id)


def test_g4_runs_are_started_found_and_shown_over_http(site: Site) -> None:
    """G4"""
    _start(site, "one", "works")
    _start(site, "two", "waits")
    until(lambda: _state(site, "one") == "done", "its end")
    until(lambda: _state(site, "two") == "sleeping", "its sleep")
    found = site.client.get("/api/v1/workflows", params={"workflow": "order", "state": "sleeping"}).json()["runs"]
    assert [one["id"] for one in found] == ["two"]
    assert site.client.get("/api/v1/workflows", params={"state": "failed"}).json()["runs"] == []
    both = site.client.get("/api/v1/workflows", params={"ended": "yes"}).json()["runs"]
    assert [one["id"] for one in both] == ["two", "one"]
    done = site.client.get("/api/v1/workflows/one").json()
    assert [(one["name"], one["kind"], one["step"]) for one in done["tree"]] == [
        ("charge", "step", 0), ("sleep", "sleep", 1), ("ship", "step", 2)
    ]  # fmt: skip
    assert all(one["end"] >= one["start"] and one["waited"] >= 0 for one in done["tree"])
    assert done["steps"][0]["value"] == {"text": '"paid <b>"'}
    for path, status in (
        ("/api/v1/workflows/none", 404), ("/api/v1/workflows?state=odd", 400), ("/api/v1/workflows?limit=0", 400),
    ):  # fmt: skip
        assert site.client.get(path).status_code == status, path
    message = site.publish("order.placed", "x")
    assert site.client.get(f"/api/v1/workflows/{message}").status_code == 404


def test_g4_cancel_and_restart_over_http(site: Site) -> None:
    """G4 G3"""
    _start(site, "gone", "waits")
    until(lambda: _state(site, "gone") == "sleeping", "its sleep")
    assert site.client.post("/api/v1/workflows/gone/cancel").json() == {"cancelled": True}
    until(lambda: _state(site, "gone") == "cancelled", "its end")
    assert TRIES == [-1]
    assert site.client.post("/api/v1/workflows/gone/cancel", json={"undo": False}).json() == {"cancelled": False}
    TRIES.clear()
    _start(site, "again", "fails")
    until(lambda: _state(site, "again") == "failed", "its failure")
    refused = site.client.post("/api/v1/workflows/again/restart", json={"step": "shop"})
    assert (refused.status_code, "charge" in refused.json()["detail"]) == (404, True)
    undone = site.client.post("/api/v1/workflows/again/restart", json={"step": "ship"})
    assert (undone.status_code, "step 0 before it was undone" in undone.json()["detail"]) == (409, True)
    assert site.client.post("/api/v1/workflows/again/restart", json={"step": "charge"}).status_code == 200
    until(lambda: _state(site, "again") == "done", "its end")
    assert site.client.post("/api/v1/workflows/again/restart").status_code == 409


def test_g5_the_progress_of_a_run_over_http_and_on_its_page(site: Site, watched: Watched) -> None:
    """G5"""
    GO_ON.clear()
    _start(site, "busy", "holds")
    until(lambda: site.client.get("/api/v1/workflows/busy").json()["progress"] is not None, "its progress")
    told = site.client.get("/api/v1/workflows/busy").json()["progress"]
    assert told == {"done": 1, "total": 4, "note": "a quarter"}
    watched.page.goto(f"{site.address}/workflows/busy")
    expect(watched.page.get_by_label("Progress")).to_have_attribute("value", re.compile("1"))
    GO_ON.set()
    until(lambda: _state(site, "busy") == "done", "its end")
    assert site.client.get("/api/v1/workflows/busy").json()["progress"] is None


def test_g4_a_run_on_its_page(site: Site, watched: Watched) -> None:
    """G4 U4: a tree and a waterfall; cancelled and restarted there."""
    _start(site, "slow/1", "waits")
    until(lambda: _state(site, "slow%2F1") == "sleeping", "its sleep")
    page = watched.page
    page.goto(f"{site.address}/workflows?state=sleeping")
    page.get_by_role("link", name="slow/1").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("order slow/1")
    rows = page.get_by_role("region", name="Steps and when they ran").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("charge")
    expect(page.get_by_text('"paid <b>"')).to_be_visible()
    asked: list[str] = []
    page.on("dialog", accepting(asked))
    page.get_by_role("button", name="Cancel and undo").click()
    expect(page.get_by_role("status")).to_contain_text("ends at its next step")
    expect(page.locator("#live .chip").get_by_text("cancelled", exact=True)).to_be_visible()
    expect(rows.filter(has_text=re.compile("undo charge"))).to_have_count(1)
    page.reload()
    expect(page.get_by_role("button", name="Restart")).to_be_visible()


def test_f7_what_waits_for_what_is_on_the_queues_page(site: Site, watched: Watched) -> None:
    """F7: shown on the page, over HTTP and to Prometheus; changed live."""
    broker = site.bus.broker
    broker.create_queue("mail", type="pull", ordered=True)
    broker.publish([Message("mail.send", b"x", key=key) for key in ("ann", "ann", "ann", "<i>bob")])
    assert broker.pull("mail", count=1) is not None
    flow = site.client.get("/api/v1/queues/mail").json()["flow"]
    assert flow["waiting"] == {"concurrency": 2, "": 1}
    assert [(one["key"], one["waiting"]) for one in flow["top"]] == [("ann", 2), ("<i>bob", 1)]
    told = site.client.get("/metrics").text
    assert 'remuda_queue_held_messages{queue="mail",held_by="concurrency"} 2.0' in told
    assert 'remuda_queue_key_messages{queue="mail",key="ann"} 2.0' in told
    page = watched.page
    page.goto(f"{site.address}/queues/mail")
    keys = page.get_by_role("region", name="Keys with most waiting")
    expect(keys.get_by_role("row").nth(1)).to_contain_text("concurrency")
    expect(page.get_by_text("2 wait for a slot")).to_be_visible()
    page.get_by_role("button", name="Pause key <i>bob").click()
    expect(page.get_by_role("status")).to_contain_text("is held")
    expect(keys.get_by_role("row").nth(2)).to_contain_text("pause")
    page.get_by_text("Change who goes when").click()
    page.get_by_label("Rate", exact=True).fill("5/min")
    page.get_by_label("Concurrency", exact=True).fill("7")
    page.get_by_role("button", name="Save rules").click()
    expect(page.get_by_role("status")).to_contain_text("were changed")
    options = broker.queue("mail").options
    assert (options.rate, options.concurrency, options.ordered) == ("5/m", 7, True)
