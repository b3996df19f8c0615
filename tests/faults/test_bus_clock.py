"""B4, B14: the machine's clock jumps back an hour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remuda import Attempt, Bus
from remuda.bus.testing import ManualClock, TestBus
from tests.bus.kit import eventually, running, state

pytestmark = [pytest.mark.faults]

HOUR = 3600


def test_while_running_it_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """B4, B6, B14: retries, delays, expiry and timeouts go by time that passes, not by what the wall says."""
    bus = Bus()
    seen: list[tuple[str, int]] = []

    @bus.subscribe("x", queue="q", retry=["300ms"], timeout="60s")
    def handle(body: str, attempt: Attempt) -> None:
        seen.append((body, int(attempt)))
        if body == "fails" and attempt == 1:
            raise ValueError("no")

    with running(bus):
        bus.publish("x", "fails")
        eventually(lambda: ("fails", 1) in seen)
        now, now_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: now() - HOUR)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - HOUR * 1_000_000_000)
        expiring = bus.publish("x", "expires", expires="30s")
        delayed = bus.publish("x", "delayed", delay="1s")
        assert state(bus, delayed, "q") == "Q"
        assert ("delayed", 1) not in seen
        eventually(lambda: {("fails", 2), ("expires", 1), ("delayed", 1)} <= set(seen))
        eventually(lambda: state(bus, expiring, "q") == "X")
    assert len(seen) == 4


def test_between_two_runs_nothing_is_lost_and_new_messages_do_not_wait(tmp_path: Path) -> None:
    """B4: a retry comes when the clock has reached its time again; attempts are counted on."""
    clock = ManualClock()
    seen: list[tuple[str, int]] = []

    def reopened() -> TestBus:
        bus = Bus()

        @bus.subscribe("x", queue="q", retry=["1m", "1m"])
        def handle(body: str, attempt: Attempt) -> None:
            seen.append((body, int(attempt)))
            if body == "fails" and attempt < 3:
                raise ValueError("no")

        return bus.testing(tmp_path / "data", clock=clock)

    with reopened() as test:
        failing = test.publish("x", "fails")
        waiting = test.publish("x", "waits", delay="10s")
        test.run()
    clock.now -= HOUR * 1_000_000
    with reopened() as test:
        fresh = test.publish("x", "fresh")
        test.run()
        assert seen == [("fails", 1), ("fresh", 1)]
        assert len({failing, waiting, fresh}) == 3
        test.advance("1h")
        test.advance("10s")
        assert seen[2:] == [("waits", 1)]
        test.advance("5m")
        assert seen[3:] == [("fails", 2), ("fails", 3)]
        assert {state(test.bus, message, "q") for message in (failing, waiting, fresh)} == {"X"}
