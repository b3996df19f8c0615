"""B12: what a handler can say besides returning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from remuda import Attempt, Bus, NotInterested, NotNow, Reject, Retry
from remuda.model.errors import InvalidOption
from tests.bus.kit import attempts, state


def saying(bus: Bus, make: Callable[[], BaseException], times: int = 1, **options: Any) -> list[int]:
    """A handler that says something the first times, and then returns; its attempts."""
    calls: list[int] = []

    def say(body: Any, attempt: Attempt) -> None:
        calls.append(int(attempt))
        if len(calls) <= times:
            raise make()

    bus.subscribe("x", queue="q", **options)(say)
    return calls


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestRetry:
    def test_now(self, bus: Bus) -> None:
        """B12: counts as an attempt, but does not wait for the schedule."""
        calls = saying(bus, Retry)
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            assert calls == [1, 2]
            assert state(bus, message, "q") == "X"

    def test_after_a_while(self, bus: Bus) -> None:
        """B12"""
        calls = saying(bus, lambda: Retry("the shop is closed", after="5m"))
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            assert state(bus, message, "q") == "R"
            test.advance("299s")
            assert calls == [1]
            test.advance("1s")
            assert calls == [1, 2]

    def test_is_limited_like_any_other(self, bus: Bus) -> None:
        """B12: a handler that always asks does not go on for ever."""
        calls = saying(bus, lambda: Retry("never enough"), times=99, retry=3)
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            assert calls == [1, 2, 3, 4]
            assert state(bus, message, "q") == "E"
            assert test.dead_letters("q")[0].reason == "never enough"


def test_reject_is_invalid(bus: Bus) -> None:
    """B12: at once, kept with the reason."""
    calls = saying(bus, lambda: Reject("no such customer"), times=99)
    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        test.advance("14d")
        assert (calls, state(bus, message, "q")) == ([1], "I")
        letter = test.dead_letters("q")[0]
    assert (letter.state.value, letter.reason) == ("I", "no such customer")


def test_not_interested(bus: Bus) -> None:
    """B12"""
    calls = saying(bus, lambda: NotInterested("not my region"), times=99)
    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        test.advance("14d")
        assert (calls, state(bus, message, "q")) == ([1], "N")
        assert test.dead_letters("q", states="N")[0].reason == "not my region"


class TestNotNow:
    def test_goes_back_and_does_not_count(self, bus: Bus) -> None:
        """B12"""
        calls = saying(bus, NotNow, times=10, retry="never")
        with bus.testing() as test:
            message = test.publish("x")
            test.run()
            assert state(bus, message, "q") == "Q"
            test.advance("1m")
            assert calls == [1] * 11
            assert attempts(bus, message, "q") == 1
            assert state(bus, message, "q") == "X"

    def test_after_a_while(self, bus: Bus) -> None:
        """B12"""
        calls = saying(bus, lambda: NotNow(after="1h"))
        with bus.testing() as test:
            test.publish("x")
            test.run()
            test.advance("59m")
            assert calls == [1]
            test.advance("1m")
            assert calls == [1, 1]

    def test_is_no_hot_loop(self, bus: Bus) -> None:
        """B12: said again and again, it comes round once a second."""
        calls = saying(bus, NotNow, times=10_000)
        with bus.testing() as test:
            test.publish("x")
            assert test.run() == 1
            assert test.advance("30s") == 30
        assert len(calls) == 31


def test_of_coroutines_too(bus: Bus) -> None:
    """B12"""

    @bus.subscribe("x", queue="q")
    async def handle(body: Any) -> None:
        raise Reject("no")

    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        assert state(bus, message, "q") == "I"


def test_an_impossible_wait_is_refused_where_it_is_written() -> None:
    """B12"""
    with pytest.raises(InvalidOption):
        Retry(after="soon")
    with pytest.raises(InvalidOption):
        NotNow(after=-1)


@pytest.mark.parametrize("error", [SystemExit(3), BaseException("odd"), StopIteration(), MemoryError()])
def test_whatever_else_is_raised_is_a_failure(bus: Bus, error: BaseException) -> None:
    """B12"""
    calls = saying(bus, lambda: error, retry=["1s"])
    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        assert state(bus, message, "q") == "R"
        test.advance("1s")
        assert (calls, state(bus, message, "q")) == ([1, 2], "X")


def test_an_error_that_cannot_be_told_is_a_failure_all_the_same(bus: Bus) -> None:
    """B12: whatever its text does, and whatever is in it."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot speak")

    errors = iter([Mute(), ValueError("\udcff" + "x" * 10_000)])
    saying(bus, lambda: next(errors), times=2, retry=["1s", "1s"])
    with bus.testing() as test:
        message = test.publish("x")
        test.run()
        test.advance("1s")
        assert state(bus, message, "q") == "R"
        test.advance("1s")
        assert state(bus, message, "q") == "X"
