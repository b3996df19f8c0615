"""B4, B9: the disk fills up in the middle of retries. Nothing is lost, and nothing is handled once more for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda import Attempt, Bus, RetryPolicy
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import DiskFull
from tests.bus.kit import eventually, running, state
from tests.faults.disks import FailingDisk

pytestmark = [pytest.mark.faults]


def on(disk: FailingDisk, bus: Bus) -> None:
    """Have the bus keep its messages on this disk."""
    broker = EmbeddedBroker(Runtime(disk, clock=bus._lazy.clock))
    bus._processors.declare(broker)
    bus._lazy.broker = broker


def fill(bus: Bus) -> None:
    """Publish until the disk takes no more."""
    for _ in range(10_000):
        try:
            bus.publish("filler", b"x" * 100_000)
        except DiskFull:
            return
    raise AssertionError("the disk is not full")


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_disk_full_in_mid_retry(kind: str, tmp_path: Path) -> None:
    """B4: workers wait until there is room; attempts go on where they were, and other queues as soon as they can."""
    bus = Bus()
    disk = FailingDisk(tmp_path / "data")
    numbers: list[int] = []
    others: list[int] = []
    mended = [False]

    def work(attempt: Attempt) -> None:
        numbers.append(int(attempt))
        if not mended[0]:
            raise ValueError("long " * 4000)

    async def work_async(attempt: Attempt) -> None:
        work(attempt)

    handler: Any = work if kind == "threads" else work_async
    bus.subscribe("x", queue="q", retry=RetryPolicy(max_retries=100_000, intervals=(0,)))(handler)
    bus.subscribe("other", queue="other")(lambda body: others.append(body))
    bus.subscribe("filler", queue="filler")(lambda: None)
    on(disk, bus)
    bus.broker.set_status("filler", "only-publish")
    message = bus.publish("x")
    disk.full = True
    fill(bus)
    with running(bus):
        eventually(lambda: "room" in bus.health().get("problems", {}).get("handlers", ""))
        health = bus.health()
        assert (health["live"], health["ready"]) == (True, False)
        reached = len(numbers)
        with pytest.raises(DiskFull):
            bus.publish("other", 0)
        assert bus.broker.queue("q").size == 1
        disk.full = False
        eventually(lambda: len(numbers) > reached)
        mended[0] = True
        assert bus.publish("other", 1)
        eventually(lambda: others == [1])
        eventually(lambda: state(bus, message, "q") == "X")
        eventually(lambda: bus.health() == {"live": True, "ready": True})
        assert bus.broker.queue("q").late_answers == 0
    assert numbers == list(range(1, len(numbers) + 1)), "no attempt is skipped or made twice"
