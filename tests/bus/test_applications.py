"""Async applications, hooks, providers and typed injection (B1, B8, B11)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from remuda import Bus, Context, Message, Middleware, StopToken
from remuda.model.errors import InvalidOption, RemudaError
from tests.bus.kit import eventually, running


class Pool:
    """Like a database pool, it works on the loop that made it, and on no other."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = False

    def use(self) -> None:
        assert asyncio.get_running_loop() is self.loop, "the pool belongs to another loop"


class Shop:
    def __init__(self) -> None:
        self.bus = Bus()
        self.pool: Pool | None = None
        self.seen: list[str] = []
        self.bus.on_startup(self.open)
        self.bus.on_shutdown(self.shut)

        @self.bus.subscribe("order", queue="q")
        async def handle(body: str) -> str:
            assert self.pool is not None
            self.pool.use()
            self.seen.append(body)
            return body

    async def open(self) -> None:
        self.pool = Pool()

    async def shut(self) -> None:
        assert self.pool is not None
        self.pool.use()
        self.pool.closed = True


@pytest.fixture
def bus() -> Bus:
    return Bus()


class TestOnTheApplicationsLoop:
    def test_handlers_and_hooks_share_it(self) -> None:
        """B8: `async with bus`, as a lifespan does."""
        shop = Shop()

        async def main() -> None:
            async with shop.bus as bus:
                await bus.publish_async("order", "a")
                while not shop.seen:
                    await asyncio.sleep(0.01)
                assert shop.pool is not None
                assert shop.pool.loop is asyncio.get_running_loop()

        asyncio.run(main())
        assert shop.seen == ["a"]
        assert shop.pool is not None
        assert shop.pool.closed

    def test_run_async_ends_when_idle(self) -> None:
        """B8"""
        shop = Shop()

        async def main() -> None:
            shop.bus.publish_many("order", ["a", "b"])
            await shop.bus.run_async(until_idle=True)

        asyncio.run(main())
        assert sorted(shop.seen) == ["a", "b"]

    def test_a_loop_of_the_bus_serves_when_there_is_no_application(self) -> None:
        """B8: `remuda run`, with async hooks."""
        shop = Shop()
        shop.bus.publish("order", "a")
        shop.bus.run(until_idle=True)
        assert shop.seen == ["a"]
        assert shop.pool is not None
        assert shop.pool.closed

    def test_a_call_from_the_loop_itself(self) -> None:
        """B1"""
        shop = Shop()

        async def main() -> str:
            async with shop.bus as bus:
                return await bus.call_async("order", "a", result=str)

        assert asyncio.run(main()) == "a"

    def test_a_call_that_would_block_its_own_handler_is_refused(self) -> None:
        """B1: at once, not after its timeout, in which nothing else on the loop could run."""
        shop = Shop()
        shop.bus.subscribe("plain", queue="threads")(lambda body: body)

        async def application() -> None:
            async with shop.bus as bus:
                with pytest.raises(RemudaError, match=r"runs on this loop.*await bus\.call_async.*Nothing was stored"):
                    bus.call("order", "one", timeout="1h")
                assert bus.call("plain", 5, timeout="60s") == 5
                assert await bus.call_async("order", "two", timeout="60s") == "two"

        asyncio.run(application())
        assert shop.seen == ["two"]

    def test_what_fails_to_start_is_cleaned_up(self) -> None:
        """B16: shutdown hooks follow the startup hooks, and a later start does not reach for the old loop."""
        shop = Shop()
        shop.bus.settings.put("message.executor.q", "threads", "test")

        async def application() -> None:
            async with shop.bus:
                raise AssertionError("it must not start")

        with pytest.raises(InvalidOption, match="coroutine"):
            asyncio.run(application())
        assert shop.pool is not None
        assert shop.pool.closed
        with pytest.raises(InvalidOption, match="coroutine"):
            shop.bus.start()
        assert shop.pool.closed
        assert not shop.bus.running
        shop.bus.close()

    def test_a_start_without_a_loop_after_one_that_failed_on_it(self, bus: Bus) -> None:
        """B8"""
        seen: list[int] = []
        failures = iter([ValueError("no database")])

        @bus.on_startup
        def connect() -> None:
            for failure in failures:
                raise failure

        @bus.subscribe("x", queue="q")
        async def handle(body: int) -> None:
            seen.append(body)

        async def application() -> None:
            async with bus:
                raise AssertionError("it must not start")

        with pytest.raises(ValueError, match="no database"):
            asyncio.run(application())
        with bus:
            bus.publish("x", 1)
            bus.run(until_idle=True, timeout="60s")
        assert seen == [1]

    def test_a_start_that_is_cancelled_leaves_nothing_running(self, bus: Bus) -> None:
        """B16"""

        @bus.subscribe("x", queue="q")
        async def handle(body: int) -> None: ...

        async def lifespan() -> None:
            async with bus:
                await asyncio.sleep(3600)

        async def application() -> None:
            for seconds in (0.0, 0.001, 0.01):
                task = asyncio.ensure_future(lifespan())
                await asyncio.sleep(seconds)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert not bus.running

        asyncio.run(application())
        bus.close()

    def test_a_loop_per_queue_stays_an_option(self, bus: Bus) -> None:
        """B8"""
        loops: set[int] = set()

        @bus.subscribe("x")
        async def handle(body: int) -> None:
            loops.add(id(asyncio.get_running_loop()))

        async def main() -> None:
            bus.publish("x", 1)
            await bus.run_async(until_idle=True, loop_per_queue=True)
            loops.discard(id(asyncio.get_running_loop()))

        asyncio.run(main())
        assert len(loops) == 1

    def test_a_startup_hook_that_fails_keeps_it_from_starting(self, bus: Bus) -> None:
        """B16"""

        @bus.on_startup
        def fail() -> None:
            raise ValueError("no database")

        with pytest.raises(ValueError, match="no database"):
            bus.run(until_idle=True)
        assert not bus.health()["ready"]

    def test_a_handler_may_stop_run_async(self, bus: Bus) -> None:
        """B16"""

        @bus.subscribe("x")
        async def handle(body: int) -> None:
            bus.stop()

        bus.publish("x", 1)
        asyncio.run(asyncio.wait_for(bus.run_async(), 60))

    def test_waiting_for_itself_is_refused(self, bus: Bus) -> None:
        """B16"""

        async def main() -> None:
            async with bus:
                with pytest.raises(RemudaError, match="stop_async"):
                    bus.stop()
                with pytest.raises(RemudaError, match="stop_async"):
                    bus.close()

        asyncio.run(main())

    def test_a_cancelled_run_async_stops_in_order(self) -> None:
        """B16"""
        shop = Shop()

        async def main() -> None:
            task = asyncio.ensure_future(shop.bus.run_async())
            await shop.bus.publish_async("order", "a")
            while not shop.seen:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert shop.pool is not None
        assert shop.pool.closed


class Noting(Middleware):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before_publish(self, message: Message) -> Message:
        await asyncio.sleep(0)
        self.seen.append("publish")
        return message

    async def before_handle(self, context: Context) -> None:
        await asyncio.sleep(0)
        self.seen.append("before")

    async def after_handle(self, context: Context, result: Any) -> Any:
        await asyncio.sleep(0)
        self.seen.append("after")
        return result

    async def handle_error(self, context: Context, error: BaseException) -> None:
        await asyncio.sleep(0)
        self.seen.append(f"error {error}")


class TestAsyncMiddleware:
    def test_is_awaited_everywhere(self) -> None:
        """B11"""
        noting = Noting()
        bus = Bus(middleware=[noting])

        @bus.subscribe("x", retry="never")
        async def handle(body: int) -> None:
            if body:
                raise ValueError("no")

        @bus.subscribe("y")
        def plain(body: int) -> None: ...

        async def main() -> None:
            async with bus:
                await bus.publish_async("x", 0)
                await bus.publish_async("x", 1)
                await bus.publish_async("y", 0)
                while len(noting.seen) < 9:
                    await asyncio.sleep(0.01)

        asyncio.run(main())
        assert sorted(noting.seen) == sorted(["publish", "before", "after"] * 2 + ["publish", "before", "error no"])

    def test_works_in_tests_and_from_threads_too(self) -> None:
        """B11, B18"""
        noting = Noting()
        bus = Bus(middleware=[noting])
        bus.subscribe("x", queue="x")(lambda body: None)
        with bus.testing() as test:
            test.publish("x")
            test.run()
        assert noting.seen == ["publish", "before", "after"]


class Session:
    def __init__(self) -> None:
        self.ended = ""


class TestProviders:
    def test_are_made_for_each_message_and_cleaned_up(self, bus: Bus) -> None:
        """B2"""
        made: list[Session] = []

        @bus.provide(Session)
        async def session() -> AsyncIterator[Session]:
            made.append(Session())
            try:
                yield made[-1]
            except ValueError:
                made[-1].ended = "rolled back"
                raise
            made[-1].ended = "committed"

        @bus.subscribe("x", retry="never")
        async def handle(session: Session, body: int) -> None:
            assert not session.ended
            if body:
                raise ValueError

        with bus.testing() as test:
            test.publish("x", 0)
            test.publish("x", 1)
            test.run()
        assert [session.ended for session in made] == ["committed", "rolled back"]

    def test_may_be_plain_and_see_the_message(self, bus: Bus) -> None:
        """B2"""
        seen: list[str] = []

        class Tenant(str):
            pass

        @bus.provide(Tenant)
        def tenant(context: Context) -> Iterator[Tenant]:
            yield Tenant(context.headers["tenant"])

        def handle(tenant: Any, body: int) -> None:
            seen.append(tenant)

        handle.__annotations__["tenant"] = Tenant
        bus.subscribe("x")(handle)
        bus.send("x", 1, headers={"tenant": "acme"})
        assert seen == ["acme"]

    def test_a_coroutine_cannot_serve_a_plain_function(self, bus: Bus) -> None:
        """B2"""

        @bus.provide(Session)
        async def session() -> Session:
            return Session()

        with pytest.raises(InvalidOption, match="make the handler a coroutine"):

            @bus.subscribe("x")
            def handle(body: int, session: Session) -> None: ...

    def test_parameters_that_nobody_fills_are_refused_when_registered(self, bus: Bus) -> None:
        """B2"""
        with pytest.raises(InvalidOption, match="a, b"):

            @bus.subscribe("x")
            def handle(a: int, b: str) -> None: ...

    def test_the_order_of_parameters_does_not_matter(self, bus: Bus) -> None:
        """B2"""
        seen: list[tuple[int, int, str]] = []

        @bus.subscribe("x")
        def handle(context: Context, extra: int = 7, *, body: int, message: Message) -> None:
            seen.append((body, extra, message.name))

        bus.send("x", 1)
        assert seen == [(1, 7, "x")]


class TestStopToken:
    @pytest.mark.parametrize("kind", ["threads", "asyncio"])
    def test_tells_a_long_handler_that_the_bus_stops(self, bus: Bus, kind: str) -> None:
        """B16"""
        begun, ended = threading.Event(), threading.Event()

        if kind == "threads":

            @bus.subscribe("x")
            def handle(body: int, stop: StopToken) -> None:
                begun.set()
                assert stop.wait(60)
                ended.set()
        else:

            @bus.subscribe("x")
            async def handle_async(body: int, stop: StopToken) -> None:
                begun.set()
                while not stop.requested:
                    await asyncio.sleep(0.01)
                ended.set()

        bus.publish("x", 1)
        with running(bus, grace=60):
            assert begun.wait(60)
            assert not ended.is_set()
        assert ended.is_set()


class TestStopping:
    def test_stop_after_start_stops(self, bus: Bus) -> None:
        """B16"""
        bus.subscribe("x", queue="x")(lambda body: None)
        runner = bus.start()
        bus.stop()
        assert not runner.running
        assert not bus.health()["ready"]
        bus.close()

    def test_a_handler_may_stop_its_own_bus(self, bus: Bus) -> None:
        """B16"""
        bus.subscribe("x", queue="x")(lambda body: bus.stop())
        runner = bus.start()
        bus.publish("x", 1)
        eventually(lambda: not runner.running)
        bus.close()

    def test_health_after_close_opens_nothing(self, tmp_path: Any) -> None:
        """B16"""
        bus = Bus(tmp_path / "data")
        bus.publish("x")
        bus.close()
        assert bus.health() == {"live": False, "ready": False}
        assert bus._lazy.broker is None

    @pytest.mark.parametrize("kind", ["threads", "asyncio"])
    def test_generator_exit_is_a_failure_like_others(self, bus: Bus, kind: str) -> None:
        """B6: a worker survives whatever its handler raises."""
        seen: list[int] = []

        def act(body: int) -> None:
            if body == 1:
                raise GeneratorExit
            seen.append(body)

        if kind == "threads":
            bus.subscribe("x", queue="q", retry="never")(act)
        else:

            @bus.subscribe("x", queue="q", retry="never")
            async def handle(body: int) -> None:
                act(body)

        bus.publish_many("x", [1, 2])
        with running(bus):
            eventually(lambda: seen == [2])
            eventually(lambda: bus.broker.queue("q").dead == 1)


def test_a_coroutine_that_blocks_its_loop_keeps_its_lease(monkeypatch: pytest.MonkeyPatch, bus: Bus) -> None:
    """B6: the lease is renewed from outside the loop, so a blocked success does not run again."""
    import time

    monkeypatch.setattr("remuda.bus.declaring.LEASE", "1s")
    monkeypatch.setattr("remuda.bus.execution.active_delivery.RENEW", 0.05)
    calls: list[int] = []

    @bus.subscribe("x", queue="q", threads=2)
    async def handle(body: int) -> None:
        calls.append(body)
        time.sleep(1.5)

    bus.publish("x", 1)
    with running(bus):
        eventually(lambda: bus.broker.queue("q").size == 0)
    assert calls == [1]


def test_a_loop_in_the_same_thread_is_told_apart(bus: Bus) -> None:
    """B1"""

    @bus.subscribe("x")
    async def handle(body: int) -> int:
        return body

    async def main() -> None:
        with pytest.raises(RemudaError, match="send_async"):
            bus.send("x", 1)
        assert await bus.send_async("x", 1) == [1]

    asyncio.run(main())
