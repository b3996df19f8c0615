"""Periodic messages: each due time once, over restarts and processes (B19)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Context, ManualClock, NotNow
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import HOUR, MINUTE
from tests.bus.kit import eventually, running

START = 1_800_000_000_000_000 // HOUR * HOUR


@pytest.fixture
def bus() -> Bus:
    return Bus()


def due(context: Context) -> int:
    return ((context.message.due or 0) - START) // MINUTE


def add(bus: Bus, runs: list[int], **options: Any) -> None:
    def tick(context: Context) -> None:
        runs.append(due(context))

    bus.every("5m", name="tick", **options)(tick)


def test_each_due_time_runs_once(bus: Bus) -> None:
    """B19"""
    runs: list[int] = []
    add(bus, runs)
    with bus.testing(clock=ManualClock(START + MINUTE)) as test:
        test.run()
        assert runs == []
        test.advance("21m")
    assert runs == [5, 10, 15, 20]


def test_cron_runs_in_its_time_zone(bus: Bus) -> None:
    """B19"""
    runs: list[str] = []

    @bus.cron("0 3 * * *", tz="Europe/Berlin")
    def nightly() -> None:
        runs.append("run")

    with bus.testing() as test:
        test.advance("3d")
    assert len(runs) == 3


@pytest.mark.parametrize(("rule", "expected"), [("once", [5]), ("all", list(range(5, 60, 5))), ("skip", [])])
def test_what_was_missed_while_nothing_ran(tmp_path: Path, rule: str, expected: list[int]) -> None:
    """B19: the next run is kept, over a restart, and comes late."""
    runs: list[int] = []
    clock = ManualClock(START + MINUTE)
    for _ in range(2):
        bus = Bus()
        add(bus, runs, catch_up=rule)
        with bus.testing(tmp_path / "data", clock=clock) as test:
            test.run()
        clock.advance("57m")
        if clock.now > START + 100 * MINUTE:
            break
    assert runs == expected


def test_several_buses_on_one_broker_run_each_time_once(bus: Bus) -> None:
    """B19: whoever plans a run gives it the same id, and a second is a duplicate."""
    runs: list[int] = []
    add(bus, runs)
    with bus.testing(clock=ManualClock(START + MINUTE)) as test:
        for _ in range(5):
            bus.schedules.plan_all()
        assert test.queue("tick").delayed == 1
        test.advance("6m")
        for _ in range(5):
            bus.schedules.plan_all()
        test.advance("5m")
    assert runs == [5, 10]


def test_a_failing_run_is_retried_and_the_next_still_comes(bus: Bus) -> None:
    """B19"""
    runs: list[int] = []

    @bus.every("5m", name="tick", retry=["1m"])
    def tick(context: Context) -> None:
        runs.append(due(context))
        raise ValueError

    with bus.testing(clock=ManualClock(START + MINUTE)) as test:
        test.advance("12m")
    assert runs == [5, 5, 10, 10]


def test_a_paused_schedule_waits(bus: Bus) -> None:
    """B19"""
    runs: list[int] = []
    add(bus, runs)
    with bus.testing(clock=ManualClock(START + MINUTE)) as test:
        test.run()
        bus.broker.set_status("tick", "only-publish")
        test.advance("30m")
        assert runs == []
        bus.broker.set_status("tick", "running")
        test.advance("5m")
    assert runs == [5, 35]


def test_a_run_planned_under_a_former_rule_is_left_out(tmp_path: Path) -> None:
    """B19"""
    runs: list[int] = []
    clock = ManualClock(START + MINUTE)
    before = Bus()
    add(before, runs)
    with before.testing(tmp_path / "data", clock=clock) as test:
        test.run()
    after = Bus()

    @after.every("15m", name="tick")
    def tick(context: Context) -> None:
        runs.append(due(context))

    with after.testing(tmp_path / "data", clock=clock) as test:
        test.advance("20m")
    assert runs == [15]


@pytest.mark.parametrize("options", [{"catch_up": "never"}, {"name": ""}, {"name": 5}])
def test_wrong_options_are_refused(bus: Bus, options: Any) -> None:
    """B19"""
    with pytest.raises(InvalidOption):
        bus.every("5m", **options)


def test_a_misspelt_option_is_refused(bus: Bus) -> None:
    """B19"""
    with pytest.raises(TypeError, match="retrys"):
        bus.every("5m", retrys=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("how", ["cancel", "clear", "forget"])
@pytest.mark.parametrize("restarted", [False, True])
def test_b19_a_schedule_outlives_its_planned_run(tmp_path: Path, how: str, restarted: bool) -> None:
    """B19: that run is left out, and the next comes in its time."""
    runs: list[int] = []
    clock = ManualClock(START + MINUTE)
    bus = Bus()
    add(bus, runs)

    def end(test: Any) -> None:
        test.run()
        if how == "cancel":
            assert bus.cancel(bus.schedules.by_topic["remuda-schedule.tick"].run_id(START + 5 * MINUTE))
        else:
            assert bus.clear("tick") == 1
        if how == "forget":
            assert bus.forget("tick") == 1

    with bus.testing(tmp_path / "data", clock=clock) as test:
        end(test)
        if not restarted:
            test.advance("15m")
    if restarted:
        with bus.testing(tmp_path / "data", clock=clock) as test:
            test.advance("15m")
    assert runs == [10, 15]


def test_b19_a_run_that_its_queue_refuses_is_planned_when_it_takes(bus: Bus) -> None:
    """B19"""
    runs: list[int] = []
    add(bus, runs)
    with bus.testing(clock=ManualClock(START + MINUTE)) as test:
        bus.broker.set_status("tick", "only-consume")
        test.advance("1m")
        assert test.queue("tick").size == 0
        bus.broker.set_status("tick", "running")
        test.advance("5m")
        assert runs == [5]
        bus.broker.configure_queue("tick", message_limit=1)
        test.advance("10m")
    assert runs == [5, 10, 15]


def test_b19_a_schedule_that_cannot_be_planned_holds_up_no_other_handler(tmp_path: Path) -> None:
    """B19: not at a restart either."""
    bus, seen = Bus(tmp_path / "data", sync="os"), list[int]()
    add(bus, [])
    bus.subscribe("x", queue="q")(lambda body: seen.append(body))
    bus.broker.set_status("tick", "paused")
    with running(bus):
        bus.publish("x", 1)
        eventually(lambda: seen == [1])
        assert bus.broker.queue("tick").size == 0
        bus.broker.set_status("tick", "running")
        bus.schedules.next_look = 0
        eventually(lambda: bus.broker.queue("tick").delayed == 1)


@pytest.mark.parametrize("again", ["retry", "not now", "reprocess"])
def test_b19_a_run_that_had_begun_is_not_missed(bus: Bus, again: str) -> None:
    """B19"""
    runs: list[int] = []

    @bus.every("5m", name="tick", retry=["20m"] if again == "retry" else "never", catch_up="skip")
    def tick(context: Context) -> None:
        runs.append(due(context))
        if len(runs) == 1:
            raise NotNow(after="20m") if again == "not now" else ValueError

    with bus.testing(clock=ManualClock(START + MINUTE)) as test:
        test.advance("4m")
        assert runs == [5]
        test.advance("20m")
        if again == "reprocess":
            assert bus.reprocess("tick") == 1
            test.run()
    assert sorted(runs) == [5, 5, 10, 15, 20, 25]


def test_b19_a_run_that_is_skipped_says_so(tmp_path: Path) -> None:
    """B19"""
    clock, runs = ManualClock(START + MINUTE), list[int]()
    for _ in range(2):
        bus = Bus()
        add(bus, runs, catch_up="skip")
        with bus.testing(tmp_path / "data", clock=clock) as test:
            test.run()
            letters = test.dead_letters("tick")
        clock.advance("57m")
    assert [(one.state.value, one.reason) for one in letters] == [("N", "skipped: it comes too late")]
    assert runs == []
