"""B4, B5: when to try again, and how often."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from remuda import Attempt, Bus, RetryPolicy
from remuda.bus.settings.retry import DEFAULT, NEVER, cap, exponential, policy
from remuda.bus.testing import ManualClock, TestBus
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import HOUR, MINUTE, SECOND
from tests.bus.kit import attempts, events, state

DAY = 24 * HOUR


def failing(bus: Bus, **options: Any) -> list[tuple[int, int]]:
    """A handler that always fails; gives each attempt's number and time."""
    calls: list[tuple[int, int]] = []

    def fail(body: Any, attempt: Attempt) -> None:
        calls.append((int(attempt), bus.now()))
        raise ValueError("no")

    bus.subscribe("x", queue="q", **options)(fail)
    return calls


def waits(calls: list[tuple[int, int]]) -> list[int]:
    times = [time for _, time in calls]
    return [later - earlier for earlier, later in pairwise(times)]


class TestArithmetic:
    def test_papertrails_schedule(self) -> None:
        """B4: attempt n waits entry n, the last entry repeats, and five retries are all."""
        assert [DEFAULT.after(attempt) for attempt in range(1, 7)] == [MINUTE, HOUR, 4 * HOUR, DAY, DAY, None]

    def test_the_last_entry_repeats(self) -> None:
        """B4"""
        schedule = RetryPolicy(max_retries=5, intervals=(SECOND, MINUTE))
        assert [schedule.after(attempt) for attempt in range(1, 7)] == [SECOND, MINUTE, MINUTE, MINUTE, MINUTE, None]

    def test_never_less_than_the_minimum(self) -> None:
        """B4"""
        schedule = RetryPolicy(max_retries=3, intervals=(SECOND, MINUTE), min_interval=10 * SECOND)
        assert [schedule.after(attempt) for attempt in (1, 2, 3)] == [10 * SECOND, MINUTE, MINUTE]

    def test_a_list_of_waits_is_as_many_retries(self) -> None:
        """B4"""
        assert policy(["1s", "1m", 2]) == RetryPolicy(max_retries=3, intervals=(SECOND, MINUTE, 2 * SECOND))
        assert policy(2) == 2, "the rest is as configured"
        assert policy(0) is not None
        assert policy([]) == NEVER

    def test_exponential_with_jitter(self) -> None:
        """B4"""
        schedule = exponential("1s", factor=3, longest="10s", retries=2000, jitter=0.5)
        assert schedule.intervals[:4] == (SECOND, 3 * SECOND, 9 * SECOND, 10 * SECOND)
        assert schedule.intervals[-1] == 10 * SECOND
        drawn = {schedule.after(1) or 0 for _ in range(200)}
        assert len(drawn) > 50
        assert min(drawn) >= SECOND
        assert max(drawn) <= 1.5 * SECOND

    @pytest.mark.parametrize(
        "make",
        [
            lambda: RetryPolicy(max_retries=-1),
            lambda: RetryPolicy(intervals=(-1,)),
            lambda: RetryPolicy(min_interval=-1),
            lambda: RetryPolicy(jitter=-0.1),
            lambda: cap(0),
            lambda: exponential(factor=0.5),
            lambda: exponential(retries=-1),
            lambda: policy(True),
        ],
    )
    def test_impossible_policies_are_refused(self, make: Any) -> None:
        """B4"""
        with pytest.raises(InvalidOption):
            make()


class TestSchedule:
    def test_default_in_time(self) -> None:
        """B4"""
        bus = Bus()
        calls = failing(bus)
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            test.advance("10d")
            assert [number for number, _ in calls] == [1, 2, 3, 4, 5, 6]
            assert waits(calls) == [MINUTE, HOUR, 4 * HOUR, DAY, DAY]
            assert state(bus, message, "q") == "E"

    def test_exactly_when_due_and_not_before(self) -> None:
        """B4"""
        bus = Bus(settings={"message.retry.intervals": "60", "message.retry.max": 1})
        calls = failing(bus)
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("59999999us")
            assert len(calls) == 1
            test.advance("1us")
            assert len(calls) == 2

    def test_the_minimum_holds_for_the_general_schedule(self) -> None:
        """B4: bare numbers of the minimum are milliseconds."""
        bus = Bus(settings={"message.retry.intervals": "1,2,30", "message.retry.min.interval": 10000})
        calls = failing(bus)
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("5m")
            assert waits(calls) == [10 * SECOND, 10 * SECOND, 30 * SECOND, 30 * SECOND, 30 * SECOND]

    def test_of_the_handler(self) -> None:
        """B4"""
        bus = Bus()
        calls = failing(bus, retry=["1s", "1m"])
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("1h")
            assert waits(calls) == [SECOND, MINUTE]

    def test_of_a_queue_over_that_of_its_handler(self) -> None:
        """B3, B4"""
        bus = Bus(settings={"message.retry.intervals.q": "5", "message.retry.max.q": 3})
        calls = failing(bus, retry=["1s", "1m"])
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("1h")
            assert waits(calls) == [5 * SECOND] * 3

    def test_stops_at_success(self) -> None:
        """B4"""
        bus = Bus()
        calls: list[int] = []

        @bus.subscribe("x", queue="q", retry=["1s"] * 5)
        def third_time_lucky(attempt: Attempt) -> None:
            calls.append(int(attempt))
            if attempt < 3:
                raise ValueError("not yet")

        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            test.advance("1h")
            assert calls == [1, 2, 3]
            assert state(bus, message, "q") == "X"


class TestCounting:
    def test_is_in_the_log_before_the_handler_runs(self) -> None:
        """B4: the attempt is counted when it starts."""
        bus = Bus()
        counted: list[int] = []

        @bus.subscribe("x", queue="q")
        def look(body: str, attempt: Attempt) -> None:
            counted.append(attempts(bus, body, "q"))

        with bus.testing() as test:
            test.publish("x", "own", id="own")
            test.run()
        assert counted == [1]

    def test_a_worker_lost_in_mid_handler_counts(self, tmp_path: Path) -> None:
        """B4: a crash is an attempt, and after the last one the handler does not run again."""
        clock = ManualClock()
        calls: list[int] = []

        def reopened() -> TestBus:
            bus = Bus()

            @bus.subscribe("x", queue="q", retry=["1s"])
            def handle(attempt: Attempt) -> None:
                calls.append(int(attempt))
                raise KeyboardInterrupt

            return bus.testing(tmp_path / "data", clock=clock)

        with reopened() as test:
            message = test.publish("x")
        for _ in range(2):
            with reopened() as test, pytest.raises(KeyboardInterrupt):
                test.run()
        with reopened() as test:
            test.run()
            assert calls == [1, 2]
            assert state(test.bus, message, "q") == "E"
            assert "the worker was lost" in test.dead_letters("q")[0].reason

    def test_is_durable_across_restarts(self, tmp_path: Path) -> None:
        """B4: number and time of the next attempt are as they were."""
        clock = ManualClock()
        for turn in range(3):
            bus = Bus()
            calls = failing(bus, retry=["1m", "1h"])
            with bus.testing(tmp_path / "data", clock=clock) as test:
                if not turn:
                    message = test.publish("x")
                    test.run()
                    clock.advance("59s")
                elif turn == 1:
                    test.advance(0)
                    assert calls == []
                    test.advance("1s")
                    assert [number for number, _ in calls] == [2]
                    clock.advance("2h")
                else:
                    test.advance(0)
                    assert [number for number, _ in calls] == [3]
                    assert state(bus, message, "q") == "E"

    def test_starts_anew_after_reprocessing(self) -> None:
        """B4, B15"""
        bus = Bus()
        calls = failing(bus, retry=["1s"])
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("1m")
            bus.reprocess("q")
            test.run()
            test.advance("1m")
            assert [number for number, _ in calls] == [1, 2, 1, 2]

    def test_every_failure_is_told_in_one_line_that_says_what_comes_next(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """B4"""
        bus = Bus()
        failing(bus, retry=["1m"])
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            test.advance("1m")
        assert [record.getMessage() for record in caplog.records if record.name == "remuda.bus"] == [
            f"q: attempt 1 of 2 of message {message} failed: ValueError: no; next attempt in 1m",
            f"q: attempt 2, the last, of message {message} failed: ValueError: no; "
            "it is dead: fix the cause, then reprocess it",
        ]

    def test_reason_and_traceback_of_each_failure_are_in_the_log(self) -> None:
        """B4"""
        bus = Bus()
        failing(bus, retry=["1m"])
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("1m")
            failures = [event for event in events(bus, "q") if event.state.value in "RE"]
        assert [event.attempt for event in failures] == [1, 2]
        assert all(event.reason == "ValueError: no" for event in failures)
        assert all('raise ValueError("no")' in (event.detail or "") for event in failures)
        assert not any("remuda/bus" in (event.detail or "") for event in failures), "only the handler's own lines"

    def test_the_line_of_a_failure_has_fields_for_programs(self, caplog: pytest.LogCaptureFixture) -> None:
        """B4"""
        bus = Bus()
        failing(bus, retry=["1m"])
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
        (record,) = (record for record in caplog.records if record.name == "remuda.bus")
        assert {name: record.__dict__[name] for name in ("queue", "message_id", "attempt")} == {
            "queue": "q",
            "message_id": message,
            "attempt": 1,
        }


class TestCap:
    def test_schedule(self) -> None:
        """B5: three attempts at once, from the fourth minute one each minute, 50 in all."""
        bus = Bus()
        calls = failing(bus, retry="cap")
        with bus.testing() as test:
            message = test.publish("x")
            assert test.run() == 3
            test.advance("1d")
            assert len(calls) == 50
            assert waits(calls) == [0, 0, 4 * MINUTE] + [MINUTE] * 46
            assert state(bus, message, "q") == "E"

    def test_failed_retry_count(self) -> None:
        """B5"""
        bus = Bus()
        calls = failing(bus, retry=cap(5))
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("1d")
        assert len(calls) == 5

    def test_the_threshold_callback_fires_once(self) -> None:
        """B5"""
        told: list[tuple[str, str, str]] = []
        bus = Bus(on_threshold=lambda *what: told.append(what))
        calls = failing(bus, retry="cap")
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            test.advance("49m")
            assert (len(calls), told) == (49, [])
            test.advance("1d")
        assert told == [("q", message, "ValueError: no")]

    def test_the_threshold_follows_the_number_of_retries(self) -> None:
        """B3, B5"""
        told: list[tuple[str, str, str]] = []
        bus = Bus(settings={"message.retry.max.q": 1}, on_threshold=lambda *what: told.append(what))
        failing(bus, retry="cap")
        with bus.testing() as test:
            test.publish("x")
            test.run()
        assert len(told) == 1

    def test_an_early_threshold_fires_on_the_way(self) -> None:
        """B5"""
        told: list[str] = []
        bus = Bus(on_threshold=lambda queue, message, reason: told.append(message))
        calls = failing(bus, retry=RetryPolicy(max_retries=4, intervals=(0,), threshold=2))
        with bus.testing() as test:
            test.publish("x")
            test.run()
        assert (len(calls), len(told)) == (5, 1)

    def test_a_callback_that_fails_changes_nothing(self) -> None:
        """B5"""

        def fail(*what: str) -> None:
            raise RuntimeError("pager is down")

        bus = Bus(on_threshold=fail)
        failing(bus, retry=cap(1))
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            assert state(bus, message, "q") == "E"

    def test_success_on_the_way_fires_nothing(self) -> None:
        """B5"""
        told: list[str] = []
        bus = Bus(on_threshold=lambda *what: told.append(what[1]))

        @bus.subscribe("x", retry="cap")
        def fourth(attempt: Attempt) -> None:
            if attempt < 4:
                raise ValueError("no")

        with bus.testing() as test:
            test.publish("x")
            test.run()
            assert test.advance("1d") == 1
        assert told == []
