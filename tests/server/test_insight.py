"""U4 in a real browser: workers and what runs, schedules, errors over all queues, history, alerts; and over HTTP."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from remuda.bus.bus import Bus
from remuda.bus.scheduling.overview import schedules
from tests.server.site import Site, serving, until
from tests.servers.browser import Watched, accepting, browser, watched

__all__ = ["browser", "watched"]


@pytest.fixture
def busy() -> Iterator[tuple[Site, threading.Event]]:
    """A bus whose only handler runs until the event is set."""
    go = threading.Event()
    with Bus() as bus:

        @bus.subscribe("order.placed", queue="ship", threads=2, timeout="10m")
        def ship(body: str) -> None:
            go.wait(120)

        bus.start()
        with serving(bus) as site:
            yield site, go
            go.set()


def test_u4_workers_and_what_runs_over_http(busy: tuple[Site, threading.Event]) -> None:
    """U4"""
    site, go = busy
    id = site.bus.publish("order.placed", "<b>one</b>")
    (found,) = until(lambda: site.client.get("/api/v1/running").json()["running"], "the call")
    assert found["process"] == os.getpid()
    assert (found["call"]["id"], found["call"]["queue"], found["call"]["timeout"]) == (id, "ship", 600_000_000)
    (worker,) = site.client.get("/api/v1/workers").json()["workers"]
    assert (worker["intake"], worker["silent"], worker["id"]) == ("open", False, found["worker"])
    assert site.client.post(f"/api/v1/workers/{worker['id']}/pause").json()["order"] == "pause"
    until(lambda: site.client.get("/api/v1/workers").json()["workers"][0]["intake"] == "paused", "the pause")
    assert site.client.post("/api/v1/workers/nobody/stop").status_code == 404
    assert site.client.post(f"/api/v1/workers/{worker['id']}/explode").status_code == 404
    go.set()
    until(lambda: not site.client.get("/api/v1/running").json()["running"], "the end")


def test_u4_workers_are_paused_resumed_and_stopped_on_their_page(
    busy: tuple[Site, threading.Event], watched: Watched
) -> None:
    """U4 U1: with the keyboard as well."""
    site, go = busy
    id = site.bus.publish("order.placed", "<script>window.hacked=1</script>")
    page = watched.page
    page.goto(f"{site.address}/workers")
    row = page.get_by_role("region", name="Running now").get_by_role("row", name=re.compile(id))
    expect(row).to_contain_text("10 min")
    expect(page.get_by_role("region", name="Workers").get_by_role("row").nth(1)).to_contain_text("1 of ")
    page.get_by_role("button", name=re.compile("^Pause worker")).press("Enter")
    expect(page.get_by_role("status")).to_contain_text("will take no more messages")
    expect(page.get_by_text("paused", exact=True)).to_be_visible()
    page.get_by_role("button", name=re.compile("^Resume worker")).click()
    expect(page.get_by_text("working", exact=True)).to_be_visible()
    asked: list[str] = []
    page.on("dialog", accepting(asked))
    page.get_by_role("button", name=re.compile("^Stop worker")).click()
    expect(page.get_by_role("status")).to_contain_text("will finish what it runs, and end")
    assert re.fullmatch(r"Stop worker \d+ on .+\? It finishes the 1 it runs, and ends\.", asked[0])
    expect(page.get_by_text("stopping", exact=True)).to_be_visible()
    go.set()
    expect(page.get_by_role("heading", name="No worker runs")).to_be_visible()
    assert not site.bus.running


def test_u4_schedules_are_listed_run_at_once_and_paused(watched: Watched) -> None:
    """U4 B19: next and last run with its outcome, over HTTP and on their page."""
    ran: list[int] = []
    with Bus() as bus:

        @bus.every("1h", name="tidy")
        def tidy() -> None:
            ran.append(1)

        @bus.cron("0 3 * * *", tz="Europe/Berlin", name="night/ly <b>")
        def nightly() -> None: ...

        bus.start()
        with serving(bus) as site:
            listed = {one["name"]: one for one in site.client.get("/api/v1/schedules").json()["schedules"]}
            assert listed.keys() == {"tidy", "night/ly <b>"}
            tidy_now = listed["tidy"]
            assert (tidy_now["rule"], tidy_now["last"], tidy_now["late"]) == ("every 1h", None, False)
            assert 0 < tidy_now["next"] - bus.now() <= 3_600_000_000
            page = watched.page
            page.goto(f"{site.address}/schedules")
            row = page.get_by_role("row", name=re.compile("tidy"))
            expect(row).to_contain_text("never")
            page.get_by_role("button", name="Run tidy now").click()
            expect(page.get_by_role("status")).to_contain_text("tidy runs now")
            until(lambda: ran == [1], "the run")
            assert site.client.post("/api/v1/schedules/night%2Fly%20%3Cb%3E/run").status_code == 200
            assert "nearest are: tidy" in site.client.post("/api/v1/schedules/tidi/run").json()["detail"]
            page.goto(f"{site.address}/schedules")
            page.get_by_role("button", name="Pause tidy").click()
            expect(page.get_by_role("row", name=re.compile("tidy"))).to_contain_text("paused")
            page.get_by_role("button", name="Resume tidy").click()
            expect(page.get_by_role("row", name=re.compile("tidy"))).to_contain_text("on time")


def test_u4_a_schedule_that_nobody_runs_is_late_and_tells_of_its_last_run() -> None:
    """U4 B19"""
    bus = Bus()

    @bus.every("1h", name="tidy")
    def tidy() -> None:
        raise ValueError("no room")

    with bus.testing() as test:
        test.advance("90m")
        (one,) = schedules(test.bus.broker, test.bus.now())
        assert (one.outcome, one.late, one.running, one.missed) == ("waiting for a retry", False, False, 0)
        assert one.reason is not None
        assert one.last is not None
        assert one.next == one.last + 3_600_000_000
        (late,) = schedules(test.bus.broker, test.bus.now() + 3 * 3_600_000_000)
        assert late.late
