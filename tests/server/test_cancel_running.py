"""B20 U4: a message that is being handled is cancelled over HTTP, on a page, and over TCP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from remuda import Bus, NotAllowed
from remuda.broker.shared.wire.command_checks import checked_query
from remuda.broker.shared.wire.permissions import Grants, Permissions
from remuda.model.errors import InvalidOption
from remuda.model.operations.worker_orders import Cancellation, Orders
from remuda.server.wire import serve_wire
from tests.bus.test_cancel_running import ended, sleeping, started, with_tests
from tests.server.site import serving, until
from tests.servers.browser import Watched, accepting, browser, watched

__all__ = ["browser", "watched"]


def test_b20_over_http(tmp_path: Path) -> None:
    """B20 U4"""
    with Bus() as bus:
        id = sleeping(bus, tmp_path / "flag")
        with serving(bus) as site:
            answer = site.client.post(f"/api/v1/messages/{id}/cancel")
            assert (answer.status_code, answer.json()["cancelled"]) == (200, 1)
            assert ended(bus, id).queues["q"].reason == "cancelled"
            again = site.client.post(f"/api/v1/messages/{id}/cancel").json()
            assert again == {"cancelled": 0, "status": "dead"}


def test_u4_on_the_page_of_workers_and_of_the_message(watched: Watched, tmp_path: Path) -> None:
    """U4 B20"""
    with Bus() as bus:
        first = sleeping(bus, tmp_path / "flag")
        with serving(bus) as site:
            until(lambda: any(worker.running for worker in bus.broker.workers()), "the worker's sign")
            page = watched.page
            page.goto(f"{site.address}/workers")
            page.once("dialog", accepting([]))
            page.get_by_role("button", name=f"Cancel message {first}").click()
            expect(page.get_by_text(f"Message {first} is")).to_be_visible()
            assert ended(bus, first).queues["q"].reason == "cancelled"
            (tmp_path / "flag").unlink()
            second = bus.publish("a", str(tmp_path / "flag"))
            started(tmp_path / "flag")
            page.goto(f"{site.address}/messages/{second}")
            page.once("dialog", accepting([]))
            page.get_by_role("button", name="Cancel", exact=True).click()
            expect(page.get_by_text(f"Message {second} is")).to_be_visible()
            assert ended(bus, second).queues["q"].reason == "cancelled"
            page.goto(f"{site.address}/messages/{second}")
            expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


def test_b20_over_tcp_both_ways(tmp_path: Path) -> None:
    """B20 C6: the worker came over remuda://, and so did who cancels."""
    (tmp_path / "app.py").write_text(
        "import sys\nfrom remuda import Bus\nfrom tests.bus.test_cancel_running import sleep_long\n"
        "bus = Bus(sys.argv[1])\nbus.subscribe('a', queue='q')(sleep_long)\nbus.run()\n"
    )
    with Bus(tmp_path / "data") as bus, serve_wire(bus.broker, ("127.0.0.1", 0)) as server:
        far = subprocess.Popen([sys.executable, str(tmp_path / "app.py"), server.url], env=with_tests())
        try:
            until(lambda: any(one.name == "q" for one in bus.broker.queues()), "the queue")
            id = bus.publish("a", str(tmp_path / "flag"))
            started(tmp_path / "flag")
            until(lambda: bus.broker.workers(), "the worker's sign")
            with Bus(server.url) as other:
                assert other.cancel(id, who="ann") == 1
            assert ended(bus, id).queues["q"].reason == "cancelled"
        finally:
            far.kill()
            far.wait(60)


def test_s6_what_a_stranger_may() -> None:
    """S6 B20: to cancel needs what it needs to clear, and a worker hears of queues that its user may read."""
    ann = Permissions(Grants("ann", configure="^mine$", read="^mine$"))
    ann.check_query("cancel_running", ("mine", 1, "ann"))
    with pytest.raises(NotAllowed, match="configure access to queue 'yours'"):
        ann.check_query("cancel_running", ("yours", 1, "ann"))
    both = Orders(None, (Cancellation("mine", 1, "x"), Cancellation("yours", 2, "x")))
    assert ann.only_seen("tell_worker", both).cancel == both.cancel[:1]
    assert checked_query("cancel_running", ("mine", 1, "ann")) == ("mine", 1, "ann")
    wrong: Any
    for wrong in (("", 1, "ann"), ("mine", -1, "ann")):
        with pytest.raises(InvalidOption):
            checked_query("cancel_running", wrong)
