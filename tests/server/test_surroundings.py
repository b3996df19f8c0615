"""U1: pages on topics, channels and spectators, on the outbox and on pipelines; pictures for the documentation."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from remuda import Binding, Bus
from remuda.model.life import Life
from remuda.model.message_row import MessageRow
from remuda.model.state import State
from remuda.outbox import Outbox
from remuda.server.http.pages.charts import conversation_diagram, depth_points, sparkline
from remuda.server.http.rates import Sample
from remuda.server.http.webhooks import webhook
from remuda.spark.lake.coverage import newest
from remuda.spark.lake.versions import LakeFile, Step
from tests.server.site import Site, serving, until
from tests.servers.browser import Watched, browser, watched

__all__ = ["browser", "watched"]

HOSTILE = "<img src=x onerror=window.hacked=1>"


def make_lake(lake: Path) -> None:
    """A lake as the pipeline `metrics` leaves it, and the checkpoint of one that follows."""
    start = int(time.time() // 60 * 60 - 3600) * 1_000_000
    rows: list[dict[str, Any]] = [
        {
            "start": start + window * 60_000_000, "queue": queue, "published": 100 + 10 * (window % 7),
            "dead": window % 3, "succeeded": 95 + 10 * (window % 7), "wait_p95": 0.02 + window % 5 / 100,
            "processing_p95": 0.05,
        }
        for window in range(60)
        for queue in ("reserve", "ship", HOSTILE, None)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows)
    table = table.set_column(0, "start", table["start"].cast(pa.timestamp("us", "UTC")))
    (lake / "metrics").mkdir(parents=True)
    pq.write_table(table, lake / "metrics" / "a.parquet")
    size = (lake / "metrics" / "a.parquet").stat().st_size
    assert newest(str(lake), "metrics").commit(Step(added=(LakeFile("a.parquet", {}, size, table.num_rows),)))
    checkpoint = lake / "_checkpoints" / "metrics"
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "offsets").mkdir()
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"offset": 3, "position": 1}')


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A bus on a directory, with an outbox of which two messages were given up, a webhook, a router, and a lake."""
    root = tmp_path_factory.mktemp("shop")
    make_lake(root / "lake")
    with Bus(root / "data") as bus:
        outbox = Outbox(bus, f"sqlite:///{root}/app.db", retry="never")
        outbox.create_tables()

        @bus.subscribe("order.placed", queue="reserve", retry=["1ms"])
        def reserve(body: dict[str, int]) -> dict[str, int]:
            if body["n"] % 5 == 3:
                raise ValueError(f"no stock for {body['n']}")
            return body

        @bus.subscribe("stock.reserved", queue="ship")
        def ship(body: dict[str, int]) -> None:
            bus.publish("parcel.packed", body)

        @bus.subscribe("parcel.#", queue="invoice")
        def invoice(body: dict[str, int]) -> None: ...

        webhook(bus, "billing", "https://example.org/hooks", "bill.#", break_after=1)
        bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        bus.broker.create_router("fair", "round-robin", [Binding(queue="reserve"), Binding(queue="ship")])
        with sqlite3.connect(root / "app.db") as connection:
            for _ in range(2):
                bus.publish("big", HOSTILE * 10, key=HOSTILE, transaction=connection)
            bus.publish("order.placed", {"n": 0}, transaction=connection)
        connection.close()
        bus.start()
        with serving(bus, lake=str(root / "lake")) as site:
            for n in range(60):
                bus.publish("order.placed", {"n": n}, callback="stock.reserved", id=f"order-{n}")
            until(lambda: site.queue("reserve")["dead"] == 12 and not site.queue("ship")["waiting"], seconds=60)
            until(lambda: outbox.messages("failed"), seconds=60)
            yield site


def test_topics_channels_routers_and_spectators(shop: Site, watched: Watched) -> None:
    """U1 T2 Q18"""
    page = watched.page
    with shop.client.stream("GET", "/api/v1/log/stream?from=0") as stream:
        lines = stream.iter_lines()
        next(lines)
        page.goto(f"{shop.address}/topics")
        rows = page.get_by_role("region", name="Topics and who gets them").locator("tbody tr")
        expect(rows.filter(has_text="reserve").first).to_contain_text("order.placed")
        expect(rows.filter(has_text="billing")).to_contain_text("example.org")
        expect(page.get_by_role("region", name="Routers")).to_contain_text("fair")
        expect(page.get_by_role("region", name="Live streams").locator("tbody tr")).to_have_count(1)
    page.get_by_label("Filter by topic or queue").fill("parcel")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)


def test_the_outbox_shows_what_was_given_up_and_sends_it_again(shop: Site, watched: Watched) -> None:
    """U1 O2"""
    page = watched.page
    page.goto(f"{shop.address}/outbox")
    rows = page.get_by_role("region", name="Messages of the outbox").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("MessageTooLarge")
    expect(page.get_by_role("region", name="Relays").locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("alert")).to_contain_text("select at least one")
    page.goto(f"{shop.address}/outbox")
    shop.bus.broker.configure_queue("small", message_size_limit=0)
    page.get_by_label("Select all shown").check()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status")).to_contain_text("2 messages will be sent again")
    until(lambda: shop.queue("small")["waiting"] == 2, seconds=60)
    page.goto(f"{shop.address}/outbox?status=succeeded")
    page.locator("td.mono a").first.click()
    expect(page.locator(".timeline")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    watched.troubles = [trouble for trouble in watched.troubles if "400" not in trouble]


@pytest.mark.parametrize("path", ["/outbox?status=odd", "/outbox?status="])
def test_a_status_that_is_none_is_refused(shop: Site, path: str) -> None:
    assert shop.client.get(path).status_code == 400


def test_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    """U1: on the page, and by health once the relay has noticed."""
    with Bus() as bus:
        Outbox(bus, f"sqlite:///{tmp_path}/none/app.db")
        bus.start()
        with serving(bus) as site:
            answer = site.client.get("/outbox")
            assert (answer.status_code, "cannot be opened" in answer.text) == (200, True)
            until(lambda: site.client.get("/health/ready").status_code == 503)
            assert site.client.get("/health/ready").json()["problems"] == ["relay"]


def test_without_outbox_lake_and_topics_the_pages_say_what_they_are_for() -> None:
    with Bus() as bus, serving(bus, lake="/nowhere/at/all") as site:
        assert "This bus has no outbox" in site.client.get("/outbox").text
        assert "No lake here yet" in site.client.get("/pipelines").text
        assert "No topics yet" in site.client.get("/topics").text
        assert site.client.get("/data/pipelines?table=../../etc").json()["times"] == []


def test_pipelines_with_last_run_tables_and_charts(shop: Site, watched: Watched) -> None:
    """U1: from the metrics tables, by queue too."""
    page = watched.page
    page.goto(f"{shop.address}/pipelines")
    expect(page.get_by_role("region", name="Pipelines")).to_contain_text("metrics")
    expect(page.get_by_role("region", name="Tables of the lake").locator("tbody tr")).to_have_count(1)
    expect(page.locator(".chart canvas")).to_have_count(2)
    page.get_by_label("Queue").select_option("ship")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".chart canvas")).to_have_count(2)
    told = shop.client.get("/data/pipelines?table=metrics&queue=ship").json()
    assert (len(told["times"]), told["counts"]["published"][:2]) == (60, [100, 110])
    assert shop.client.get("/data/pipelines?table=metrics").json()["counts"]["published"][:2] == [400, 440]


def test_u4_every_page_fits_a_phone_and_a_large_screen(shop: Site, watched: Watched) -> None:
    """U1 U4: nothing is wider than the screen but what scrolls by itself; the dark theme changes no measure."""
    page = watched.page
    ended = shop.client.get("/api/v1/queues/reserve").json()["summary"]["dead"]
    assert ended, "a page of dead letters needs some"
    for path in (
        "/", "/queues/reserve", "/messages", "/messages/order-3", "/messages/order-3/edit?queue=reserve", "/dead",
        "/dead?queue=reserve", "/errors", "/history", "/alarms", "/workers", "/schedules", "/workflows", "/tail",
        "/latency", "/topics", "/outbox", "/pipelines", "/publish", "/create-queue", "/nothing",
    ):  # fmt: skip
        page.set_viewport_size({"width": 1400, "height": 800})
        page.goto(shop.address + path)
        for width, theme in ((1400, "light"), (1400, "dark"), (800, "light"), (390, "light"), (390, "dark")):
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": 800})
            fits(page, path, width, theme)
    watched.troubles = [trouble for trouble in watched.troubles if "404" not in trouble]


def fits(page: Page, path: str, width: int, theme: str) -> None:
    """Charts follow the screen a moment later."""
    wider = "document.documentElement.scrollWidth - innerWidth"
    deadline = time.monotonic() + 10
    while page.evaluate(wider) > 0:
        assert time.monotonic() < deadline, (path, width, theme, page.evaluate(wider))
        page.wait_for_timeout(20)


def test_pictures_for_the_documentation(shop: Site, watched: Watched, tmp_path: Path) -> None:
    """`REMUDA_PICTURES=docs/images` puts them there."""
    page, folder = watched.page, Path(os.environ.get("REMUDA_PICTURES") or tmp_path)
    page.set_viewport_size({"width": 1200, "height": 720})
    for n in range(60, 160):
        shop.bus.publish("order.placed", {"n": n}, callback="stock.reserved", id=f"order-{n}")
        time.sleep(0.02)
    for name, path, ready in (
        ("overview", "/", ".queues"), ("message", "/messages/order-77", ".talk"),
        ("queue", "/queues/reserve", "canvas"),
    ):  # fmt: skip
        page.goto(shop.address + path)
        expect(page.locator(ready).first).to_be_visible()
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size < 150_000


def row(id: str) -> MessageRow:
    return MessageRow.of(0, 0, id, "t", (), None, None, None, "text/plain", 0, "q", Life(State.COMPLETED, 0))


def test_a_diagram_has_causes_on_the_left_and_no_two_boxes_in_one_place() -> None:
    tree = [(0, row("a")), (1, row("b")), (2, row("c")), (2, row("d")), (1, row("e")), (2, row("f"))]
    drawn = conversation_diagram(tree)
    assert len(drawn.edges) == 5
    places = {node.row.id: (node.x, node.y) for node in drawn.nodes}
    assert len(set(places.values())) == 6
    assert places["a"][0] < places["b"][0] == places["e"][0] < places["c"][0]
    assert places["c"][1] < places["d"][1] < places["f"][1]
    assert conversation_diagram([(0, row("alone"))]).height == drawn.node_height


def test_the_charts_of_an_idle_queue_span_all_the_time_it_was_watched() -> None:
    """U1: of an idle queue, only the first and the last sample are kept."""
    idle = [Sample(time, 5, 0, 2, 9, 4, 2) for time in (100.0, 500.0)]
    drawn = depth_points(idle)
    assert drawn["times"] == [100.0, 500.0]
    assert drawn["depth"] == {"waiting": [5, 5], "in flight": [0, 0], "delayed": [0, 0], "dead letters": [2, 2]}
    assert drawn["rates"] == {"published": [0, 0], "done": [0, 0], "failed": [0, 0]}
    assert depth_points([*idle, Sample(502.0, 6, 0, 2, 10, 4, 2)])["rates"]["published"] == [0, 0, 0.5]
    assert depth_points(idle[:1])["rates"]["done"] == [0]
    assert depth_points([])["rates"]["done"] == []


def test_a_line_begins_with_what_was_so_before() -> None:
    samples = [Sample(time, waiting, 0, 0, 0, 0, 0) for time, waiting in ((0.0, 5), (500.0, 5))]
    assert sparkline(samples) == "0.0,2.0 96.0,2.0"


def test_only_operators_have_the_outbox_sent_again(tmp_path: Path) -> None:
    from remuda.server.http.security.users import Role, User

    with Bus() as bus, serving(bus, identify=lambda request: User("eve", Role.VIEWER)) as site:
        assert site.client.post("/outbox", data={"scope": "all"}).status_code == 403
        assert isinstance(site.client, httpx.Client)
