"""G2: messages that runs wait for, in a test's own time."""

from __future__ import annotations

from typing import Any

import pytest

from remuda import Bus, Run
from remuda.bus.testing import TestBus


def waiting(timeout: str | None = None, sleep: str = "0s") -> Bus:
    bus = Bus()

    @bus.workflow(name="w", waits_for="t")
    def w(run: Run, key: str | None) -> Any:
        run.sleep(sleep)
        return run.wait_for("t", key=key, timeout=timeout)

    return bus


def days(test: TestBus, count: int) -> None:
    for _ in range(count):
        test.advance("1d")


def mailboxes(bus: Bus) -> tuple[int, int]:
    """How many there are, and how many dead letters they left."""
    (found,) = [one for one in bus.broker.queues() if one.name == "remuda.mailboxes"]
    return found.size, len(bus.broker.parked("remuda.mailboxes"))


def test_g2_a_message_is_not_lost_to_a_run_that_is_over() -> None:
    bus = waiting()
    with bus.testing() as test:
        undone, cancelled, cleared, first, second = (bus.workflows.start("w", "k") for _ in range(5))
        test.run()
        bus.workflows.cancel(undone)
        test.run()
        bus.cancel(cancelled)
        bus.broker.clear("workflow.w", offsets=[(bus.broker.message(cleared).offset, 1)])
        bus.publish("t", "one", key="k")
        test.run()
        assert bus.workflows.result(first) == "one"
        bus.workflows.restart(cancelled, step=0)
        bus.reprocess("workflow.w", reason="cleared")
        test.run()
        for body in ("two", "three", "four"):
            bus.publish("t", body, key="k")
            test.run()
        assert sorted(bus.workflows.result(id) for id in (cancelled, cleared, second)) == ["four", "three", "two"]


@pytest.mark.parametrize("key", [None, "one", "each"])
def test_g2_a_message_costs_the_same_however_many_came_before(key: str | None) -> None:
    bus, read = waiting(), list[int]()
    with bus.testing() as test:
        notes = bus.broker.notes

        def counted(queue: str, offset: int, after: int = 0) -> Any:
            found = notes(queue, offset, after)
            read.append(len(found))
            return found

        bus.broker.notes = counted  # type: ignore[method-assign]
        for number in range(200):
            bus.publish("t", number, key=str(number) if key == "each" else key)
        test.run()
        assert 200 <= sum(read) <= 210


def test_g2_a_message_waits_thirty_days_for_its_run_and_a_mailbox_leaves_nothing_behind() -> None:
    bus = waiting(sleep="28d")
    with bus.testing() as test:
        bus.publish("t", "before the run", key="k")
        days(test, 20)
        id = bus.workflows.start("w", "k")
        test.run()
        days(test, 9)
        bus.publish("t", "while it slept", key="k")
        days(test, 19)
        assert bus.workflows.result(id) == "while it slept"
        assert mailboxes(bus) == (1, 0)
        days(test, 40)
        assert mailboxes(bus) == (0, 0)


def test_g2_a_mailbox_stays_while_a_run_waits_and_no_longer() -> None:
    bus = waiting()
    with bus.testing() as test:
        first, second = (bus.workflows.start("w", key) for key in "ab")
        days(test, 70)
        assert mailboxes(bus) == (2, 0)
        bus.workflows.cancel(second)
        days(test, 31)
        assert mailboxes(bus) == (1, 0)
        test.publish("t", "late", key="a")
        test.run()
        assert bus.workflows.result(first) == "late"
