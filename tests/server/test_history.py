"""U4: history and errors, counted from the log: over HTTP, on their pages, by the command line; after restarts too."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from remuda.bus.bus import Bus
from remuda.cli import main
from remuda.history.duration_buckets import bucket_of, percentiles
from remuda.history.history import History
from remuda.log.eventlog import open_event_log
from remuda.model.values.durations import DAY, HOUR, MINUTE
from tests.server.site import Site, serving, until
from tests.servers.browser import Watched, accepting, browser, watched

__all__ = ["browser", "watched"]
HOSTILE = "<script>window.hacked=1</script>"


def fill(bus: Bus) -> None:
    """Ten messages: two are dead at once, in `ship` and, of the same kind, in `bill`."""

    def fail(body: int) -> None:
        if body in (3, 7):
            raise ValueError(f"no stock for {body} {HOSTILE}")

    @bus.subscribe("order.placed", queue="ship", retry=["1ms"])
    def ship(body: int) -> None:
        fail(body)

    @bus.subscribe("order.placed", queue="bill", retry=[])
    def bill(body: int) -> None:
        fail(body)

    bus.start()
    bus.publish_many("order.placed", list(range(10)))
    until(lambda: all(bus.broker.queue(name).size == 0 for name in ("ship", "bill")), "the end of the work")


@pytest.fixture
def failing() -> Iterator[Site]:
    with Bus() as bus:
        fill(bus)
        with serving(bus) as site:
            yield site


def counted(directory: Path) -> History:
    history = History(open_event_log(directory), directory)
    history.catch_up()
    return history


def test_u4_what_queues_did_is_counted_from_the_log_and_not_twice(tmp_path: Path) -> None:
    """U4: published, done, failed and dead by queue; the same after a restart, and with two that count."""
    with Bus(tmp_path) as bus:
        fill(bus)
    one, other = counted(tmp_path), counted(tmp_path)
    one.catch_up()
    for history in (one, other):
        found = {total.queue: total for total in history.totals("24h")}
        ship, bill = found["ship"], found["bill"]
        assert (ship.published, ship.done, ship.failed, ship.dead) == (10, 8, 4, 2)
        assert (bill.published, bill.done, bill.failed, bill.dead) == (10, 8, 2, 2)
        assert ship.wait.p50 is not None
        assert ship.took.p99 is not None
        assert sum(point.done for point in history.points("1h", "ship")) == 8
        assert sum(point.done for point in history.points("30d")) == 16
    one.close()
    with Bus(tmp_path) as bus:
        fill(bus)
    assert other.catch_up() > 0
    assert {total.queue: total.published for total in other.totals("1h")} == {"ship": 20, "bill": 20}
    other.close()


def test_u4_another_log_in_the_same_place_is_counted_anew(tmp_path: Path) -> None:
    """U4"""
    with Bus(tmp_path / "data") as bus:
        fill(bus)
    counted(tmp_path / "data").close()
    kept = tmp_path / "kept"
    (tmp_path / "data" / "history").rename(kept)
    with Bus(tmp_path / "new") as bus:
        bus.broker.create_queue("ship", type="pull", patterns=["one.#"])
        bus.publish_many("one.x", list(range(100)))
    kept.rename(tmp_path / "new" / "history")
    history = counted(tmp_path / "new")
    assert [(total.queue, total.published) for total in history.totals("24h")] == [("ship", 100)]
    history.close()


def test_u4_waits_and_handling_times_are_measured(tmp_path: Path) -> None:
    """U4: a message that waited a second waited a second, also one that a retry made available again."""
    gone = threading.Event()
    with Bus(tmp_path) as bus:

        @bus.subscribe("work", queue="work", retry=["1s"])
        def work(body: int) -> None:
            if not gone.is_set():
                gone.set()
                time.sleep(0.5)
                raise ValueError(body)

        bus.broker.set_status("work", "only-publish")
        bus.publish("work", 1)
        time.sleep(1)
        bus.broker.set_status("work", "running")
        bus.start()
        until(lambda: bus.broker.queue("work").size == 0, "the end")
    history = counted(tmp_path)
    (total,) = history.totals("1h")
    assert total.wait.p99 is not None
    assert total.took.p99 is not None
    assert total.wait.p99 > 800_000
    assert total.took.p99 > 400_000
    history.close()


@pytest.mark.parametrize("duration", [1, 999, 12_345, 60_000_000, 40 * DAY])
def test_u4_percentiles_are_within_a_tenth(duration: int) -> None:
    """U4"""
    found = percentiles({bucket_of(duration): 3})
    assert all(one is not None and abs(one - duration) <= max(0.1 * duration, 1) for one in found)


def test_u4_pages_do_not_wait_for_a_long_log_to_be_counted(tmp_path: Path) -> None:
    """U4: what is new is counted for them, ten thousand or fewer."""
    with Bus(tmp_path) as bus:
        bus.broker.create_queue("q", type="pull", patterns=["q"])
        bus.publish_many("q", list(range(3)))
        history = History(open_event_log(tmp_path), tmp_path)
        assert history.is_near(10)
        assert not history.is_near(2)
        history.catch_up()
        assert history.is_near(0)
        bus.publish_many("q", list(range(20)))
        bus.broker.spectate()
        assert not history.is_near(19)
        history.close()


def test_u4_old_slots_are_left_out(tmp_path: Path) -> None:
    """U4: an hour shows an hour."""
    with Bus(tmp_path) as bus:
        fill(bus)
    history = counted(tmp_path)
    now = time.time_ns() // 1000
    assert history.totals("1h", now + 2 * HOUR) == []
    assert len(history.points("1h", now=now)) == HOUR // MINUTE
    assert len(history.totals("30d", now + 2 * DAY)) == 2
    assert history.totals("30d", now + 31 * DAY) == []
    history.close()


def test_u4_the_overview_has_trouble_on_top_and_sorts_by_its_heads(failing: Site, watched: Watched) -> None:
    """U4 U1: the age of the oldest waiting message; on a phone too."""
    broker = failing.bus.broker
    for number in range(100):
        broker.create_queue(f"a{number:02}", type="pull", patterns=[f"a{number:02}.#"])
    failing.publish("a77.old", 1)
    page = watched.page
    page.goto(f"{failing.address}/")
    heads = page.get_by_role("region", name="Queues").get_by_role("rowheader")
    expect(heads.nth(0)).to_have_text("a77")
    expect(heads.nth(1)).to_have_text("bill")
    expect(heads.nth(2)).to_have_text("ship")
    waiting = page.get_by_role("row", name=re.compile("^a77"))
    expect(waiting).to_contain_text("no consumer")
    oldest = until(lambda: failing.queue("a77")["oldest"], "the next sample")
    assert failing.bus.now() - 60_000_000 < oldest <= failing.bus.now()
    page.get_by_role("columnheader", name="Name").or_(page.get_by_role("link", name="Queue", exact=True)).click()
    expect(heads.nth(0)).to_have_text("a00")
    page.get_by_role("link", name="Dead letters", exact=True).nth(1).press("Enter")
    expect(page.get_by_role("columnheader", name="Dead letters")).to_have_attribute("aria-sort", "descending")
    expect(heads.nth(0)).to_have_text("bill")
    page.set_viewport_size({"width": 390, "height": 800})
    row = page.get_by_role("row", name=re.compile("^bill"))
    dead = row.locator("[data-head='Dead letters'] a").bounding_box()
    assert dead is not None
    assert 0 < dead["x"] < 390 - dead["width"]


def test_u4_all_queues_that_are_listed_are_acted_on_at_once(watched: Watched) -> None:
    """U4 B15 B22: by their filter, after a question with the number; and over HTTP."""
    with Bus() as bus:
        for name in ("team-1", "team-2", "other"):
            bus.broker.create_queue(name, type="pull", patterns=[name])
            bus.publish(name, 1)
            delivery = bus.broker.pull(name)
            assert delivery is not None
            delivery.dead(reason="broken")
        with serving(bus) as site:
            page = watched.page
            asked: list[str] = []
            page.on("dialog", accepting(asked))
            page.goto(f"{site.address}/?filter=TEAM")
            page.get_by_role("button", name="Retry 2 dead letters").click()
            expect(page.get_by_role("status")).to_contain_text("2 messages back in 2 queues.")
            page.get_by_role("button", name="Pause", exact=True).click()
            expect(page.get_by_role("status")).to_contain_text("2 queues are paused; they still accept messages.")
            assert asked == [
                "Send the 2 dead letters of these 2 queues back?",
                "Pause these 2 queues? They still accept messages.",
            ]
            states = {one["name"]: one["status"] for one in site.client.get("/api/v1/queues").json()["queues"]}
            assert {states.pop("team-1"), states.pop("team-2")} == {"only-publish"}
            assert set(states.values()) == {"running"}
            assert site.client.post("/api/v1/queues/*/reprocess").json() == {"count": 1}
            assert site.client.post("/api/v1/queues/team-*/resume").json()["summary"]["status"] == "running"
            assert site.client.post("/api/v1/queues/nope*/resume").status_code == 404


def test_u4_what_was_forgotten_is_sent_again(
    watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U4 B15: from the queue's page, over HTTP and at the command line, from the log; not what others forgot before."""
    with Bus(tmp_path / "data") as bus:
        bus.broker.create_queue("q", type="pull", patterns=["q"])
        for round_ in ([1], [2, 3, 4]):
            for number in round_:
                bus.publish("q", number, key="k", headers={"a": "b"}, id=f"m-{number}")
                bus.publish("elsewhere", 0)  # so that those forgotten do not lie side by side
                delivery = bus.broker.pull("q")
                assert delivery is not None
                delivery.dead(reason="broken")
            bus.broker.forget("q", who="ann")
        with serving(bus) as site:
            page = watched.page
            page.on("dialog", accepting([]))
            page.goto(f"{site.address}/queues/q")
            page.get_by_role("button", name="Send again: 3 dead letters forgotten").click()
            expect(page.get_by_role("status")).to_contain_text("3 forgotten messages sent again.")
            sent = bus.broker.pull("q", 10)
            assert sent is not None
            assert [message.body for message in sent.messages] == [b"2", b"3", b"4"]
            first = sent.messages[0]
            assert (first.key, first.headers["a"], first.headers["cap-corr-id"]) == ("k", "b", "m-2")
            assert first.id != "m-2"
            sent.ack()
            changes = site.client.get("/api/v1/queues/q/changes").json()["changes"]
            assert [one["what"] for one in changes] == ["3 dead letters forgotten", "dead letter forgotten"]
            answer = site.client.post("/api/v1/queues/q/send-again", json={"time": changes[1]["time"]})
            assert answer.json() == {"sent": 1, "gone": 0}
            assert site.client.post("/api/v1/queues/q/send-again", json={"time": 1}).status_code == 404
            assert site.client.post("/api/v1/queues/nope/send-again").status_code == 404
    with pytest.raises(SystemExit):
        main(["send-again", str(tmp_path / "data"), "q"])
    assert capsys.readouterr().out == "3 forgotten messages sent again to q\n"


def test_u4_history_over_http_and_on_its_page(failing: Site, watched: Watched) -> None:
    """U4 U2"""
    found = failing.client.get("/api/v1/history?over=1h").json()
    assert sum(one["done"] for one in found["queues"]) == 16
    assert len(found["points"]) == 60
    assert [one["queue"] for one in found["queues"]] == ["bill", "ship"]
    starts = until(lambda: failing.client.get("/api/v1/history?over=1h").json()["starts"], "the worker")
    assert starts[0]["process"] > 0
    assert failing.client.get("/api/v1/history?over=2w").status_code == 400
    page = watched.page
    page.goto(f"{failing.address}/history?over=1h")
    row = page.get_by_role("region", name="Queues over time").get_by_role("row", name=re.compile("ship"))
    expect(row).to_contain_text("10")
    expect(page.locator(".chart canvas")).to_have_count(4)
    row.get_by_role("link", name="ship").click()
    expect(page.get_by_role("heading", name="History of ship")).to_be_visible()
    page.get_by_label("Over", exact=True).select_option("30 days")
    page.get_by_role("button", name="Show").press("Enter")
    expect(page.locator(".chart canvas")).to_have_count(4)


def test_u4_errors_of_all_queues_are_retried_muted_and_forgotten(failing: Site, watched: Watched) -> None:
    """U4: the red figure leads there."""
    page = watched.page
    page.goto(f"{failing.address}/")
    page.locator(".card", has_text="Dead letters").get_by_role("link", name="4").click()
    (group,) = failing.client.get("/api/v1/errors").json()["errors"]
    assert (group["failures"], group["dead"], group["exception"]) == (6, {"bill": 2, "ship": 2}, "ValueError")
    assert sum(group["trend"]) == 6
    row = page.get_by_role("region", name="Errors").get_by_role("row", name=re.compile("ValueError"))
    expect(row).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Mute ValueError").press("Enter")
    expect(page.get_by_role("region", name="Muted errors")).to_contain_text("muted by")
    page.get_by_role("button", name="Unmute ValueError").click()
    asked: list[str] = []
    page.on("dialog", accepting(asked))
    page.get_by_role("button", name="Retry ValueError").click()
    expect(page.get_by_role("status")).to_contain_text("4 messages sent back")
    until(lambda: sum(failing.queue(name)["dead"] for name in ("bill", "ship")) == 4, "the second end")
    page.goto(f"{failing.address}/errors")
    expect(row).to_contain_text("12")
    page.get_by_role("button", name="Forget ValueError").click()
    expect(page.get_by_role("status")).to_contain_text("4 dead letters forgotten")
    assert all("4 dead letters of bill, ship" in question for question in asked)
    assert len(asked) == 2
    assert failing.client.post(f"/api/v1/errors/{group['key']}/reprocess").status_code == 404
    assert failing.client.post("/api/v1/errors/nothing/mute").status_code == 404
