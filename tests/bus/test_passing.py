"""B1: publish, send and call, from plain code and from coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from remuda import Bus, Context, Message, Middleware
from remuda.bus.handlers.handler import ExecutorKind
from remuda.model.errors import BrokerClosed, InvalidMessage, RemudaError
from tests.bus.kit import eventually, running


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestPublish:
    def test_hands_over_and_handlers_run_later(self, bus: Bus) -> None:
        """B1"""
        seen: list[int] = []
        bus.subscribe("number", queue="number")(lambda_of(seen))
        with bus.testing() as test:
            message = test.publish("number", 1)
            assert message
            assert seen == []
            assert test.run() == 1
        assert seen == [1]

    def test_from_a_coroutine(self, bus: Bus) -> None:
        """B1"""
        seen: list[int] = []
        bus.subscribe("number", queue="number")(lambda_of(seen))
        with bus.testing() as test:
            assert asyncio.run(bus.publish_async("number", 2))
            test.run()
        assert seen == [2]

    def test_many_at_the_price_of_one_keep_their_order(self, bus: Bus) -> None:
        """B1"""
        seen: list[int] = []
        bus.subscribe("number", queue="number")(lambda_of(seen))
        with bus.testing() as test:
            ids = bus.publish_many("number", range(50))
            assert len(set(ids)) == 50
            test.run()
        assert seen == list(range(50))

    def test_of_nothing_is_nothing(self, bus: Bus) -> None:
        """B1"""
        with bus.testing():
            assert bus.publish_many("number", []) == []


def lambda_of(seen: list[Any]) -> Any:
    def handle(body: Any) -> None:
        seen.append(body)

    return handle


class TestSend:
    def test_runs_now_in_the_callers_thread_and_gives_the_results(self, bus: Bus) -> None:
        """B1"""
        threads: list[int] = []

        @bus.subscribe("sum")
        def add(numbers: list[int]) -> int:
            threads.append(threading.get_ident())
            return sum(numbers)

        @bus.subscribe("sum", queue="second")
        def largest(numbers: list[int]) -> int:
            return max(numbers)

        assert bus.send("sum", [1, 2, 3]) == [6, 3]
        assert threads == [threading.get_ident()]
        assert bus._lazy.broker is None, "nothing needs to be opened for it"

    def test_raises_the_handlers_error_in_the_callers_hands(self, bus: Bus) -> None:
        """B1"""

        @bus.subscribe("sum")
        def fail(body: Any) -> None:
            raise LookupError("no such account")

        with pytest.raises(LookupError, match="no such account"):
            bus.send("sum", 1)

    def test_runs_in_the_callers_transaction(self, bus: Bus) -> None:
        """B1: what the handler does is undone with the caller's own work, since both are one piece of code."""
        rows: list[str] = []

        class Transaction:
            def __enter__(self) -> None:
                self.before = list(rows)

            def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
                if kind is not None:
                    rows[:] = self.before
                return kind is not None

        @bus.subscribe("row.added")
        def audit(body: str) -> None:
            rows.append(f"audit of {body}")
            raise ValueError("refused")

        with Transaction():
            rows.append("a")
            bus.send("row.added", "a")
        assert rows == []

    def test_runs_coroutines_too(self, bus: Bus) -> None:
        """B1"""

        @bus.subscribe("sum")
        async def add(numbers: list[int]) -> int:
            await asyncio.sleep(0)
            return sum(numbers)

        assert bus.send("sum", [1, 2]) == [3]
        assert asyncio.run(bus.send_async("sum", [2, 3])) == [5]

    def test_of_a_coroutine_in_a_running_loop_says_what_to_do(self, bus: Bus) -> None:
        """B1"""

        @bus.subscribe("sum")
        async def add(numbers: list[int]) -> int:
            return sum(numbers)

        async def main() -> None:
            bus.send("sum", [1])

        with pytest.raises(RemudaError, match="send_async"):
            asyncio.run(main())

    def test_async_raises_errors_and_runs_plain_functions(self, bus: Bus) -> None:
        """B1"""

        @bus.subscribe("sum")
        def add(numbers: list[int]) -> int:
            return 1 // len(numbers)

        assert asyncio.run(bus.send_async("sum", [1])) == [1]
        with pytest.raises(ZeroDivisionError):
            asyncio.run(bus.send_async("sum", []))

    def test_one_of_each_group(self, bus: Bus) -> None:
        """B1, B10"""

        @bus.subscribe("sum", group="both")
        def first(body: Any) -> str:
            return "first"

        @bus.subscribe("sum", group="both")
        def second(body: Any) -> str:
            return "second"

        assert bus.send("sum", 0) == ["first"]

    def test_without_subscribers_gives_no_results(self, bus: Bus) -> None:
        """B1"""
        assert bus.send("sum", 0) == []

    @pytest.mark.parametrize("option", ["callback", "delay", "at", "expires", "priority"])
    def test_takes_no_options_of_a_stored_message(self, bus: Bus, option: str) -> None:
        """B1"""
        with pytest.raises(InvalidMessage, match=option):
            bus.send("sum", 0, **{option: 1})  # type: ignore[arg-type]

    def test_goes_through_middleware_and_ends_what_it_begins(self) -> None:
        """B1, B11"""
        said: list[str] = []

        class Diary(Middleware):
            def before_publish(self, message: Message) -> Message:
                said.append("before")
                return message

            def after_publish(self, message: Message) -> None:
                said.append("after")

            def publish_error(self, message: Message, error: Exception) -> None:
                said.append("error")

        bus = Bus(middleware=[Diary()])

        @bus.subscribe("sum")
        def divide(body: int) -> float:
            return 1 / body

        bus.send("sum", 1)
        with pytest.raises(ZeroDivisionError):
            bus.send("sum", 0)
        assert said == ["before", "after", "before", "error"]

    def test_links_what_the_handler_publishes(self, bus: Bus) -> None:
        """B1, B17"""
        seen: list[str | None] = []

        @bus.subscribe("first")
        def first(body: Any) -> None:
            bus.publish("second", user=None)

        @bus.subscribe("second")
        def second(context: Context) -> None:
            seen.append(context.user)

        with bus.testing() as test:
            test.send("first", user="ann")
            test.run()
        assert seen == ["ann"]


class TestCall:
    def test_waits_for_the_answer(self, bus: Bus) -> None:
        """B1"""

        @bus.subscribe("sum")
        def add(numbers: list[int]) -> int:
            return sum(numbers)

        with running(bus):
            assert bus.call("sum", [1, 2, 3]) == 6
            assert asyncio.run(bus.call_async("sum", [4])) == 4

    def test_decodes_the_answer_to_the_type_wanted(self, bus: Bus) -> None:
        """B1, M1"""

        @bus.subscribe("kind")
        def kind(body: str) -> str:
            return body

        with bus.testing() as test:
            assert test.call("kind", "threads", result=ExecutorKind) is ExecutorKind.THREADS

    def test_without_an_answer_ends_in_time_and_keeps_nothing(self, bus: Bus) -> None:
        """B1: a caller that gives up leaves nothing behind, and an answer that comes too late hurts nobody."""
        go = threading.Event()

        @bus.subscribe("slow", threads=4)
        def slow(body: Any) -> str:
            go.wait(60)
            return "late"

        @bus.subscribe("quick")
        def quick(body: Any) -> str:
            return "quick"

        with running(bus):
            with pytest.raises(TimeoutError, match=r"slow.*kept"):
                bus.call("slow", timeout="50ms")
            with pytest.raises(TimeoutError, match=r"slow.*kept"):
                asyncio.run(bus.call_async("slow", timeout="50ms"))
            asyncio.run(cancelled_call(bus))
            assert bus._calls.listener is not None
            assert bus._calls.listener._waiting == {}
            go.set()
            assert bus.call("quick") == "quick"

    def test_from_many_threads_each_gets_its_own(self, bus: Bus) -> None:
        """B1"""

        @bus.subscribe("double", threads=3)
        def double(body: int) -> int:
            return 2 * body

        answers: dict[int, int] = {}
        with running(bus):
            threads = [
                threading.Thread(target=lambda n=number: answers.update({n: bus.call("double", n)}))
                for number in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert answers == {number: 2 * number for number in range(20)}

    def test_ends_when_the_bus_is_closed(self, bus: Bus) -> None:
        """B1"""
        bus.subscribe("never", queue="never")(lambda_of([]))
        failures: list[BaseException] = []

        def call() -> None:
            try:
                bus.call("never", timeout="60s")
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        eventually(lambda: bus._calls.listener is not None and bus._calls.listener._waiting)
        bus.close()
        thread.join(60)
        assert [type(error) for error in failures] == [BrokerClosed]

    def test_takes_no_callback_of_its_own(self, bus: Bus) -> None:
        """B1"""
        with pytest.raises(InvalidMessage, match="callback"):
            bus.call("x", callback="y")  # type: ignore[call-overload]


async def cancelled_call(bus: Bus) -> None:
    task = asyncio.ensure_future(bus.call_async("slow"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
