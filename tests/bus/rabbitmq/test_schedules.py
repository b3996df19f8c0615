"""Periodic messages on RabbitMQ: each due time once over all processes, restarts and deliveries (B19)."""

from __future__ import annotations

import threading
import time

import pytest

from remuda import Bus, Context
from remuda.broker.rabbitmq.shared_state.queue_definitions import BEGAN, PLANNED, REMOVED, Catalog, change
from tests.bus.kit import eventually
from tests.bus.rabbitmq.conftest import MakeBus

SOON = 60.0


def ticking(bus: Bus, runs: list[int], guard: threading.Lock) -> None:
    @bus.every("1s", name="tick")
    def tick(context: Context) -> None:
        with guard:
            runs.append(context.message.due or 0)


def test_b19_each_due_time_runs_once_over_several_processes(make_bus_here: MakeBus) -> None:
    """B19: three buses plan the same runs and take them from one queue; one that comes later joins them."""
    runs: list[int] = []
    guard = threading.Lock()
    buses = [make_bus_here() for _ in range(3)]
    for bus in buses:
        ticking(bus, runs, guard)
    for bus in buses[:2]:
        bus.start()
    eventually(lambda: len(runs) >= 2, SOON)
    buses[2].start()
    buses[0].close()
    seen = len(runs)
    eventually(lambda: len(runs) >= seen + 2, SOON)
    for bus in buses[1:]:
        bus.stop()
    assert len(set(runs)) == len(runs)
    assert all(due % 1_000_000 == 0 for due in runs)


def test_b19_a_run_that_failed_is_tried_again_and_cron_has_its_zone(make_bus_here: MakeBus) -> None:
    """B19: a retry is the same run, and the next one is planned all the same."""
    bus = make_bus_here()
    attempts: list[tuple[int, int]] = []

    @bus.every("1s", name="tick", retry=["50ms"])
    def tick(context: Context) -> None:
        attempts.append((context.message.due or 0, context.attempt))
        if context.attempt == 1:
            raise ValueError("no")

    bus.cron("0 3 * * *", tz="Europe/Berlin", name="nightly")(lambda: None)
    bus.start()
    eventually(lambda: len({due for due, attempt in attempts if attempt == 2}) >= 2, SOON)
    bus.stop()
    assert len(set(attempts)) == len(attempts)


def test_b19_a_paused_schedule_waits(make_bus_here: MakeBus) -> None:
    """B19: pausing its queue stops it in every process; what was missed is made up for by one run."""
    bus, runs = make_bus_here(), list[int]()
    ticking(bus, runs, threading.Lock())
    bus.start()
    eventually(lambda: runs, SOON)
    bus.broker.set_status("tick", "paused")
    eventually(lambda: _stands_still(runs), SOON)
    paused = len(runs)
    bus.broker.set_status("tick", "running")
    eventually(lambda: len(runs) > paused, SOON)
    bus.stop()


def _stands_still(runs: list[int]) -> bool:
    """Whether none runs for longer than the schedule would wait; one may have begun before it was paused."""
    before = len(runs)
    time.sleep(1.5)
    return len(runs) == before


@pytest.mark.parametrize("count", [1, 100])
def test_of_the_copies_of_a_run_one_may_run(count: int) -> None:
    """It may run again, as after a crash; an older run that never began may still run, one long past may not."""
    catalog = Catalog()
    assert catalog.play(change(PLANNED, "s", 0, due=5))
    assert not catalog.play(change(PLANNED, "s", 0, due=5))
    for due in range(10, 10 + count):
        assert catalog.play(change(BEGAN, "s", 0, due=due, copy="a"))
        assert not catalog.play(change(BEGAN, "s", 0, due=due, copy="b"))
        assert catalog.play(change(BEGAN, "s", 0, due=due, copy="a"))
    assert catalog.play(change(BEGAN, "s", 0, due=5, copy="c")) is (count == 1)
    assert not catalog.play(change(PLANNED, "s", 0, due=5))
    catalog.play(change(REMOVED, "s", 0))
    assert catalog.play(change(PLANNED, "s", 0, due=5)), "the queue took its runs with it"
    again = Catalog()
    for one in catalog.changes(0):
        again.play(one)
    assert (again.planned, again.began) == (catalog.planned, catalog.began)
