"""T4, U1, U2: the search of the pages and the API by the index that stands beside the directory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus
from remuda.index import Follower, LogSource, Query, open_index, rebuild
from remuda.log.disk import DirectoryDisk
from remuda.model.operations.filters import MessageFilter
from remuda.server.http.search.recent_messages import RecentMessages
from remuda.server.http.service import MessagingService
from tests.server.site import Site, serving

WINDOW = 40
"""So few are remembered here that most are the index's to know."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """200 orders in two queues, of which every tenth is dead in one."""
    with Bus(tmp_path / "data") as bus:
        bus.broker.create_queue("orders", type="pull", patterns=["order.*"])
        bus.broker.create_queue("copies", type="pull", patterns=["order.#"])
        publish(bus, 200)
        delivery = bus.broker.pull("orders", 200)
        assert delivery is not None
        delivery.dead(list(range(0, 200, 10)), reason="no stock")
        delivery.ack([n for n in range(200) if n % 10])
        with serving(bus, service=MessagingService(bus, window=WINDOW)) as made:
            yield made


def publish(bus: Bus, count: int) -> None:
    filler = "x" * 400
    bus.publish_many("order.placed", ({"filler": filler, "word": f"w{n}", "all": "apples"} for n in range(count)))


def build(site: Site, start: int = 0) -> None:
    folder = Path(str(site.bus.url))
    index, log = open_index(folder / "index"), LogSource(DirectoryDisk(folder, create=False))
    rebuild(index, log, start=start)
    index.close()


def follow(site: Site) -> None:
    folder = Path(str(site.bus.url))
    index = open_index(folder / "index")
    Follower(index, LogSource(DirectoryDisk(folder, create=False))).catch_up()
    index.close()


def found(site: Site, words: str = "", limit: int = 7) -> list[dict[str, Any]]:
    """All pages together; each message and queue once, the newest first."""
    rows: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = site.client.get(f"/api/v1/messages?limit={limit}&cursor={cursor}&{words}")
        assert answer.status_code == 200, answer.text
        page = answer.json()
        rows += page["messages"]
        if page["next"] is None:
            break
        cursor = page["next"]
    keys = [(-row["offset"], row["queue"]) for row in rows]
    assert keys == sorted(set(keys))
    return rows


def test_without_an_index_the_newest_are_searched_and_the_page_says_so(site: Site) -> None:
    assert len(found(site)) == 2 * WINDOW + 160, "the newest, and what waits in copies"
    assert len(found(site, "queue=copies&state=Q")) == 200, "the broker knows what waits"
    assert "remuda index build" in site.client.get("/messages").text
    assert [(row["offset"], row["queue"]) for row in found(site, "text=w3")] == [(3, "copies")]
    assert found(site, "text=w3&state=E") == []


def test_an_index_that_appears_is_used_at_once(site: Site) -> None:
    build(site)
    assert len(found(site)) == 400
    assert len(found(site, "queue=orders&state=E")) == 20
    assert [row["offset"] for row in found(site, "text=w3&queue=orders")] == [3]
    assert len(found(site, "text=APPLES", limit=100)) == 400
    assert len(found(site, "topic=order.*&queue=copies")) == 200
    page = site.client.get("/messages?text=w3").text
    assert "Searches the index of all messages." in page
    assert 'data-excerpt="3"' in page
    assert site.client.get("/data/excerpts?at=3,4,x,-1,999999").json().keys() == {"3", "4"}


def test_what_the_index_has_not_taken_in_is_added(site: Site) -> None:
    """Also states that changed since, as far as they are remembered."""
    build(site)
    publish(site.bus, 20)
    assert len(found(site)) == 440
    assert len(found(site, "queue=orders&state=Q")) == 20
    delivery = site.bus.broker.pull("orders", 20)
    assert delivery is not None
    delivery.dead(reason="late")
    assert len(found(site, "queue=orders&state=E")) == 40
    assert len(found(site, "queue=orders&state=Q")) == 0
    assert "20 messages behind" in site.client.get("/messages").text
    follow(site)
    assert len(found(site, "queue=orders&state=E")) == 40


def test_states_that_changed_after_the_index_are_judged_anew(site: Site) -> None:
    """Words are the index's to find, states are of this moment."""
    publish(site.bus, 10)
    build(site)
    delivery = site.bus.broker.pull("orders", 10)
    assert delivery is not None
    delivery.dead(reason="late")
    assert len(found(site, "queue=orders&state=Q&text=apples", limit=3)) == 0


def test_a_gap_between_index_and_memory_is_told(site: Site) -> None:
    build(site)
    publish(site.bus, 100)
    answer = site.client.get("/api/v1/messages?limit=500").json()
    assert len(answer["messages"]) == 400 + 2 * WINDOW
    assert "remuda index follow" in answer["note"]


def test_an_index_of_another_log_and_a_damaged_one_are_told_and_not_used(site: Site, tmp_path: Path) -> None:
    with Bus(tmp_path / "other") as other:
        other.broker.create_queue("q", patterns=["order.*"])
        publish(other, 500)
        index = open_index(Path(str(site.bus.url)) / "index")
        rebuild(index, LogSource(DirectoryDisk(tmp_path / "other", create=False)))
        index.close()
    answer = site.client.get("/api/v1/messages").json()
    assert "belongs to another log" in answer["note"]
    assert len(answer["messages"]) == 50
    for file in (Path(str(site.bus.url)) / "index").iterdir():
        file.write_bytes(b"nonsense" * 1000)
    assert site.client.get("/messages").status_code == 200


def test_an_index_that_goes_away_is_done_without(site: Site) -> None:
    build(site)
    assert len(found(site)) == 400
    shutil.rmtree(Path(str(site.bus.url)) / "index")
    assert len(found(site)) == 2 * WINDOW + 160


@pytest.mark.parametrize("words", ["text=%21%21", "cursor=AAAA", "cursor=MToK%00", "text=" + "a" * 300])
def test_what_cannot_be_searched_is_refused(site: Site, words: str) -> None:
    build(site)
    assert site.client.get(f"/api/v1/messages?{words}").status_code == 400


def test_what_is_remembered_has_no_gap_after_a_flood(site: Site) -> None:
    """U1: lists take it for all messages from its first on, and ask the index for those before."""
    window = RecentMessages(site.bus.broker.spectate(), WINDOW)
    window.catch_up()
    publish(site.bus, 3 * WINDOW)
    window.catch_up(1)
    end = 200 + 3 * WINDOW
    assert window.first == end - WINDOW
    offsets = sorted({row.offset for row in window.index.search(Query(limit=5000)).messages})
    assert offsets == list(range(end - WINDOW, window.first + len(offsets)))


def test_dead_letters_of_long_ago_are_listed_with_and_without_an_index(site: Site) -> None:
    """U1: the newest first; what is remembered no more is looked up in the index, or read from the log."""

    def listed() -> list[str]:
        text = site.client.get("/dead?queue=orders").text
        rows = re.findall(r'href="/messages/([^"]+)">\1</a></td><td data-head="Topic" class="name">([^<]*)</td>', text)
        assert [topic for _, topic in rows] == ["order.placed"] * len(rows)
        return [id for id, _ in rows]

    without = listed()
    parked = site.bus.broker.parked("orders", MessageFilter(), 100)
    assert without == [site.bus.broker.message(one.offset).message.id for one in parked]
    assert len(without) == 20
    build(site)
    assert listed() == without
    assert "all 20 of orders" in site.client.get("/dead?queue=orders").text
