"""By id: status, result, error, cancel; one of a kind, once for ever (B20)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, HandlerFailed, InvalidMessage, NoResult, NotFound, ResultNotReady
from tests.bus.kit import running


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestStatus:
    def test_tells_the_whole_way(self, bus: Bus) -> None:
        """B20"""
        failures = [ValueError("once")]

        @bus.subscribe("x", queue="q", retry=["1m"])
        def handle(body: int) -> None:
            if failures:
                raise failures.pop()

        with bus.testing() as test:
            number = test.publish("x", 1)
            assert bus.status(number).word == "waiting"
            test.run()
            status = bus.status(number)
            assert (status.word, status.done, status.ended) == ("waiting for a retry", False, False)
            assert status.queues["q"].reason == "ValueError: once"
            test.advance("2m")
            status = bus.status(number)
            assert (status.word, status.done, status.queues["q"].attempts) == ("done", True, 2)
            assert status.queues["q"].reason is None, "a success clears the reason of the failure before it"

    def test_of_an_unknown_id(self, bus: Bus) -> None:
        """B20"""
        with bus.testing(), pytest.raises(NotFound):
            bus.status("nobody")

    @pytest.mark.parametrize("wrong", [None, 5, "", b"x"])
    def test_takes_texts_only(self, bus: Bus, wrong: Any) -> None:
        """B20"""
        for verb in (bus.status, bus.cancel, bus.result):
            with pytest.raises(ValueError, match="id must be a string"):
                verb(wrong)


class TestResult:
    def test_is_kept_when_the_publisher_asks(self, bus: Bus) -> None:
        """B20"""
        bus.subscribe("sum", queue="sum")(lambda body: sum(body))
        with bus.testing() as test:
            number = test.publish("sum", [1, 2], keep_result=True)
            with pytest.raises(ResultNotReady):
                bus.result(number)
            test.run()
            assert bus.result(number) == 3
            assert bus.result(number, int) == 3

    def test_is_kept_when_the_handler_says_so_and_over_a_restart(self, tmp_path: Path) -> None:
        """B20"""
        bus = Bus(tmp_path / "data")
        bus.subscribe("sum", queue="q", keep_result=True)(lambda body: sum(body))
        number = bus.publish("sum", [1, 2])
        bus.run(until_idle=True)
        bus.close()
        again = Bus(tmp_path / "data")
        assert again.result(number, queue="q") == 3
        again.close()

    def test_that_was_not_kept_is_told(self, bus: Bus) -> None:
        """B20"""
        bus.subscribe("sum", queue="sum")(lambda body: sum(body))
        with bus.testing() as test:
            number = test.publish("sum", [1, 2])
            test.run()
            with pytest.raises(NoResult, match="keep_result"):
                bus.result(number)

    def test_of_a_failure_is_the_error(self, bus: Bus) -> None:
        """B20"""

        @bus.subscribe("x", retry="never")
        def handle(body: int) -> None:
            raise KeyError("k")

        with bus.testing() as test:
            number = test.publish("x", 1)
            test.run()
            with pytest.raises(HandlerFailed, match="KeyError") as raised:
                bus.result(number)
        assert raised.value.error_type == "KeyError"

    def test_can_be_waited_for(self, bus: Bus) -> None:
        """B20"""
        bus.subscribe("sum", queue="sum")(lambda body: sum(body))
        with running(bus):
            assert bus.result(bus.publish("sum", [1, 2], keep_result=True), int, timeout="60s") == 3


class TestCancel:
    @pytest.mark.parametrize("options", [{}, {"delay": "1h"}])
    def test_ends_what_waits(self, bus: Bus, options: Any) -> None:
        """B20"""
        calls: list[int] = []
        bus.subscribe("x", queue="q")(lambda body: calls.append(body))
        with bus.testing() as test:
            number = test.publish("x", 1, **options)
            assert bus.cancel(number, who="ann")
            assert not bus.cancel(number), "it has ended"
            test.advance("2h")
            assert calls == []
            letter = test.dead_letters("q")[0]
            assert (letter.reason, letter.id) == ("cancelled", number)

    def test_ends_what_waits_for_a_retry(self, bus: Bus) -> None:
        """B20"""
        calls: list[int] = []

        @bus.subscribe("x", queue="q", retry=["1m"])
        def handle(body: int) -> None:
            calls.append(body)
            raise ValueError

        with bus.testing() as test:
            number = test.publish("x", 1)
            test.run()
            assert bus.cancel(number)
            test.advance("1h")
        assert calls == [1]

    def test_leaves_what_is_done(self, bus: Bus) -> None:
        """B20"""
        bus.subscribe("x", queue="x")(lambda body: None)
        with bus.testing() as test:
            number = test.publish("x", 1)
            test.run()
            assert not bus.cancel(number)
            assert bus.status(number).done


class TestOnce:
    def test_unique_while_it_waits(self, bus: Bus) -> None:
        """B20"""
        calls: list[int] = []
        bus.subscribe("x", queue="x")(lambda body: calls.append(body))
        with bus.testing() as test:
            assert test.publish("x", 1, unique="report") == test.publish("x", 2, unique="report") == "report"
            test.run()
            test.publish("x", 3, unique="report")
            test.run()
        assert calls == [1, 3]

    def test_an_idempotency_key_counts_for_ever(self, bus: Bus) -> None:
        """B20"""
        calls: list[int] = []
        bus.subscribe("x", queue="x")(lambda body: calls.append(body))
        with bus.testing() as test:
            test.publish("x", 1, idempotency_key="order-7")
            test.run()
            assert test.publish("x", 2, idempotency_key="order-7") == "order-7"
            test.run()
        assert calls == [1]

    def test_a_unique_subscription_refuses_doubles_of_any_publisher(self, bus: Bus) -> None:
        """B20, Q12"""
        calls: list[int] = []
        bus.subscribe("x", queue="q", unique=True)(lambda body: calls.append(body))
        with bus.testing() as test:
            test.publish("x", 1, id="a")
            with pytest.raises(Exception, match="a"):
                test.publish("x", 2, id="a")
            assert test.publish("x", 3, unique="a") == "a"
            test.run()
        assert calls == [1]

    @pytest.mark.parametrize(
        "options", [{"unique": ""}, {"unique": 5}, {"unique": "a", "id": "b"}, {"unique": "a", "idempotency_key": "b"}]
    )
    def test_contradictions_are_refused(self, bus: Bus, options: Any) -> None:
        """B20"""
        with pytest.raises(InvalidMessage):
            bus.publish("x", **options)
