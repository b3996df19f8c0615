"""What people see of failures, and which of them are tried again (B4, B6, M7)."""

from __future__ import annotations

import logging
import time
from typing import Any, assert_type

import pytest

from remuda import Bus, NotNow, Reject
from remuda.bus.handlers.exceptions import HandlerTimeout
from remuda.bus.observing.logs import JsonFormatter
from remuda.model.errors import InvalidOption
from tests.bus.kit import eventually, running


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestLogs:
    def test_carry_the_exception(self, bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
        """B6: so that logs, JSON and error trackers show the traceback and group by it."""

        @bus.subscribe("x", queue="q", retry=["1s"])
        def handle(body: int) -> None:
            raise ValueError("no")

        with bus.testing() as test:
            test.publish("x", 1)
            test.run()
            test.advance("1m")
        records = [record for record in caplog.records if record.name == "remuda.bus"]
        assert [record.exc_info[0] for record in records if record.exc_info] == [ValueError, ValueError]
        assert "raise ValueError" in JsonFormatter().format(records[0])


class TestNamedErrors:
    def test_only_these_are_tried_again(self, bus: Bus) -> None:
        """B4"""
        tries: list[str] = []

        @bus.subscribe("x", queue="q", retry=["1s"], retry_on=(ConnectionError, TimeoutError))
        def handle(body: str) -> None:
            tries.append(body)
            raise ConnectionResetError if body == "net" else KeyError(body)

        with bus.testing() as test:
            test.publish("x", "net")
            test.publish("x", "bug")
            test.run()
            assert test.queue("q").dead == 1
            test.advance("1m")
        assert tries == ["net", "bug", "net"]

    def test_these_are_never_tried_again_and_fail_over_at_once(self, bus: Bus) -> None:
        """B4, B7"""

        @bus.subscribe("x", queue="q", retry=["1s"], give_up_on=LookupError, failover="spare")
        def handle(body: str) -> None:
            raise KeyError(body)

        with bus.testing() as test:
            test.publish("x", "a")
            test.run()
            assert test.queue("spare").waiting == 1

    @pytest.mark.parametrize("wrong", ["ValueError", 5, [int], (ValueError, "x")])
    def test_must_be_exception_types(self, bus: Bus, wrong: Any) -> None:
        """B4"""
        with pytest.raises(InvalidOption, match="retry_on must name exception types"):
            bus.subscribe("x", retry_on=wrong)


class TestTimeouts:
    def test_a_thread_that_swallows_its_timeout_has_failed_like_a_coroutine(self, bus: Bus) -> None:
        """B6: past its time it is a failure, whatever it returns."""

        @bus.subscribe("x", queue="q", timeout="100ms", retry="never")
        def handle(body: int) -> str:
            try:
                while True:
                    time.sleep(0.01)
            except HandlerTimeout:
                return "all is well"

        with running(bus):
            bus.publish("x", 1)
            eventually(lambda: bus.broker.queue("q").dead == 1)
            assert bus.dead_letters("q")[0].reason == "timed out after 100ms"


class TestDocuments:
    def test_of_a_message_that_died_at_its_only_attempt(self, bus: Bus) -> None:
        """M7"""

        @bus.subscribe("x", queue="q", retry="never")
        def handle(body: int) -> None:
            raise ValueError if body else Reject("bad")

        with bus.testing() as test:
            for body in (0, 1):
                view = next(iter(test.message(test.publish("x", body)).queues))
                assert (view.delivered, view.processed) == (False, None)
            test.run()
            for letter in test.dead_letters("q"):
                assert letter.history.delivered
                assert letter.history.processed == test.clock.now

    def test_a_success_clears_the_reason_of_a_not_now(self, bus: Bus) -> None:
        """M7, B12"""
        refusals = [NotNow("busy")]

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            if refusals:
                raise refusals.pop()

        with bus.testing() as test:
            message = test.publish("x", 1)
            test.run()
            assert test.message(message).queues[0].reason == "busy"
            test.advance("5s")
            assert test.message(message).queues[0].reason is None


def test_results_have_the_type_that_was_asked_for(bus: Bus) -> None:
    """B1: for people, and for mypy, which checks this file."""
    bus.subscribe("x", queue="x")(lambda body: body)
    with running(bus):
        assert_type(bus.call("x", 1, result=int), int)
        assert_type(bus.result(bus.publish("x", 1, keep_result=True), int, timeout="60s"), int)
    with bus.testing() as test:
        assert_type(test.call("x", 1, result=int), int)
    with pytest.raises(InvalidOption, match="did you mean 'message_limit'"), bus:
        bus.broker.create_queue("y", mesage_limit=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match="did you mean 'message_limit'"), bus:
        bus.broker.configure_queue("x", mesage_limit=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="delays"):
        bus.publish_many("x", [], delays="1s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="timeuot"):
        bus.subscribe("x", timeuot="1s")  # type: ignore[call-arg]


class TestWorkbench:
    def test_errors_can_be_raised_in_the_test(self, bus: Bus) -> None:
        """B18"""

        @bus.subscribe("x", retry=["1m"])
        def handle(body: int) -> None:
            raise ValueError("no")

        with bus.testing() as test:
            test.publish("x", 1)
            with pytest.raises(ValueError, match="no"):
                test.run(raise_errors=True)

    def test_published_messages_can_be_looked_at(self, bus: Bus) -> None:
        """B18"""
        bus.subscribe("order.placed", queue="order.placed")(lambda body: bus.publish("order.shipped", body))
        with bus.testing() as test:
            test.publish("order.placed", 7)
            test.run()
            assert [message.name for message in test.published()] == ["order.placed", "order.shipped"]
            assert [message.body for message in test.published("*.shipped")] == [b"7"]

    def test_a_handler_that_calls_can_be_tested(self, bus: Bus) -> None:
        """B18"""
        bus.subscribe("price", queue="price")(lambda body: body * 2)
        results: list[int] = []
        bus.subscribe("order", queue="order")(lambda body: results.append(bus.call("price", body, result=int)))
        with bus.testing() as test:
            test.publish("order", 21)
            test.run(raise_errors=True)
        assert results == [42]

    def test_coroutines_run_on_the_loop_of_the_test(self, bus: Bus) -> None:
        """B18"""
        import asyncio

        loops: list[object] = []

        @bus.subscribe("x")
        async def handle(body: int) -> None:
            loops.append(asyncio.get_running_loop())

        async def main() -> object:
            async with bus.testing() as test:
                test.publish("x", 1)
                assert await test.run_async(raise_errors=True) == 1
            return asyncio.get_running_loop()

        assert [asyncio.run(main())] == loops

    def test_the_clock_begins_at_the_present(self, bus: Bus) -> None:
        """B18"""
        with bus.testing() as test:
            assert abs(test.clock.now / 1e6 - time.time()) < 60

    def test_records_of_the_bus_are_at_warning(self, bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
        """B6"""
        bus.subscribe("x", queue="x", retry=["1m"])(lambda body: 1 / 0)
        with bus.testing() as test, caplog.at_level(logging.WARNING):
            test.publish("x", 1)
            test.run()
        assert caplog.records[0].levelname == "WARNING"
