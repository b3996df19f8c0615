"""Replies that cannot be stored, that are nobody's business, and that tell of a failure (B9, B20)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, HandlerFailed, Headers, Message, NotInterested, Reject, Response
from remuda.model.queues.system_queues import CALLBACKS, RESULTS, UNROUTED
from tests.bus.kit import eventually, running


@pytest.fixture
def bus() -> Bus:
    return Bus()


def add_number(response: Response) -> None:
    response.headers["n"] = 5  # type: ignore[assignment]


def rewrite_number(response: Response) -> None:
    response.rewrite(5)  # type: ignore[arg-type]


def add_surrogate(response: Response) -> None:
    response.headers["n"] = "\ud800"


def rewrite_surrogate(response: Response) -> None:
    response.rewrite("a.\ud800")


def rewrite_wildcard(response: Response) -> None:
    response.rewrite("a.*")


UNSTORABLE = [add_number, rewrite_number, add_surrogate, rewrite_surrogate, rewrite_wildcard]


class TestUnstorable:
    @pytest.mark.parametrize("spoil", UNSTORABLE)
    def test_end_the_message_at_once_with_the_reason(self, bus: Bus, spoil: Any) -> None:
        """B9: the handler has run, and running it again would change nothing."""
        calls: list[int] = []

        @bus.subscribe("ask", queue="q")
        def handle(body: int, response: Response) -> int:
            calls.append(body)
            spoil(response)
            return body

        with bus.testing() as test:
            test.publish("ask", 1, callback="answers")
            test.publish("ask", 2)
            test.run()
            letters = test.dead_letters("q")
            assert [letter.reason.split(":")[:2] for letter in letters][:1] == [
                ["the reply cannot be stored", " InvalidMessage"]
            ]
            assert test.queue("q").size == 0
            assert calls == [1, 2]

    def test_do_not_wedge_the_queue_over_restarts(self, tmp_path: Path) -> None:
        """B9"""
        for _ in range(2):
            bus = Bus(tmp_path / "data")
            handled: list[int] = []

            @bus.subscribe("ask", queue="q")
            def handle(body: int, response: Response, handled: list[int] = handled) -> None:
                handled.append(body)
                if body == 1:
                    response.headers["n"] = 5  # type: ignore[assignment]

            with running(bus):
                bus.publish("ask", 1, callback="answers")
                bus.publish("ask", 2)
                eventually(lambda handled=handled: handled == [1, 2])  # type: ignore[misc]
                eventually(lambda bus=bus: bus.broker.queue("q").size == 0)  # type: ignore[misc]

    @pytest.mark.parametrize("headers", [{"n": 5}, {"n": "\ud800"}, {5: "n"}])
    def test_fail_like_the_same_value_in_publish(self, bus: Bus, headers: Any) -> None:
        """M2"""
        with pytest.raises(ValueError, match="nothing was stored"):
            bus.publish("x", headers=headers)


def test_a_body_that_json_cannot_hold_is_refused(bus: Bus) -> None:
    """M1: NaN would silently become null."""
    for value in (float("nan"), {"a": [float("inf")]}, [None, (1.0, float("-inf"))]):
        with pytest.raises(ValueError, match="NaN"):
            bus.publish("x", value)
    assert bus.publish("x", [None, "NaN", 1.5])


class TestOwnQueues:
    def test_do_not_answer_when_they_are_reprocessed(self, bus: Bus) -> None:
        """B13: a message nobody subscribed to must not answer its callback with null."""
        answers: list[Any] = []
        bus.subscribe("answers", queue="answers")(lambda body: answers.append(body))
        with bus.testing() as test:
            test.publish("nobody", 1, callback="answers")
            test.run()
            assert test.bus.reprocess(UNROUTED) == 1
            test.run()
        assert answers == []

    def test_are_named(self) -> None:
        """B13"""
        assert (UNROUTED, CALLBACKS, RESULTS) == ("remuda.unrouted", "remuda.callbacks", "remuda.results")


class TestFailures:
    def test_call_raises_the_error_that_would_be_retried_too_late(self, bus: Bus) -> None:
        """B20"""

        @bus.subscribe("ask", queue="q")
        def handle(body: int) -> int:
            raise ValueError("no such order")

        with running(bus), pytest.raises(HandlerFailed, match="ValueError: no such order") as raised:
            bus.call("ask", 1, timeout="60s")
        assert (raised.value.error_type, raised.value.queue) == ("ValueError", "q")
        assert "raise ValueError" in (raised.value.detail or "")

    def test_call_waits_for_a_retry_that_comes_in_time(self, bus: Bus) -> None:
        """B20"""
        failures = [ValueError("once")]

        @bus.subscribe("ask", retry=["10ms"])
        def handle(body: int) -> int:
            if failures:
                raise failures.pop()
            return body + 1

        with running(bus):
            assert bus.call("ask", 1, result=int) == 2

    @pytest.mark.parametrize("decision", [Reject("bad"), NotInterested("bad")])
    def test_call_raises_a_refusal(self, bus: Bus, decision: Exception) -> None:
        """B12, B20"""

        @bus.subscribe("ask")
        def handle(body: int) -> int:
            raise decision

        with bus.testing() as test, pytest.raises(HandlerFailed, match="bad"):
            test.call("ask", 1)

    def test_are_told_to_the_failure_callback_once_at_the_end(self, bus: Bus) -> None:
        """B20"""
        told: list[tuple[str, str]] = []

        @bus.subscribe("order", queue="q", retry=["1s"])
        def handle(body: int) -> None:
            raise ValueError("no")

        @bus.subscribe("order.failed")
        def failed(body: str, headers: Headers, message: Message) -> None:
            told.append((headers["cap-exception"], headers["cap-corr-id"]))

        with bus.testing() as test:
            number = test.publish("order", 1, failure_callback="order.failed")
            test.run()
            assert told == []
            test.advance("5s")
        assert told == [("ValueError: no", number)]
