"""B6: past its timeout a handler is interrupted, and one that ignores it blocks nobody else."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remuda import Attempt, Bus
from remuda.bus.execution import watchdog
from remuda.bus.handlers.exceptions import HandlerTimeout
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running, state

TIMEOUT = "250ms"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "GRACE", 0.3)
    monkeypatch.setattr("remuda.bus.execution.coroutine_pool.GRACE", 0.3)


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def other(bus: Bus) -> list[int]:
    """Another queue of the bus, which must go on whatever happens; what it handled."""
    seen: list[int] = []

    @bus.subscribe("other", queue="other")
    def handle(body: int) -> None:
        seen.append(body)

    return seen


def goes_on(bus: Bus, other: list[int]) -> None:
    """Another queue works while this one has trouble."""
    bus.publish("other", len(other))
    eventually(lambda: other and other[-1] == len(other) - 1)


def is_put_off(bus: Bus, message: str, number: int = 1) -> None:
    """The message failed by its timeout as often as that, and waits for its retry."""
    eventually(lambda: (state(bus, message, "q"), attempts(bus, message, "q")) == ("R", number))
    view = next(view for view in bus.broker.message(message).queues if view.queue == "q")
    assert view.reason is not None
    assert view.reason.startswith(f"timed out after {TIMEOUT}"), view.reason


class TestThreads:
    def test_are_interrupted(self, bus: Bus, other: list[int]) -> None:
        """B6: the message is marked failed and retried by schedule."""
        raised: list[type[BaseException]] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["200ms", "1h"])
        def handle(body: Any, attempt: Attempt) -> None:
            try:
                for _ in range(1000):
                    time.sleep(0.01)
            except BaseException as error:
                raised.append(type(error))
                raise

        with running(bus):
            message = bus.publish("x")
            goes_on(bus, other)
            is_put_off(bus, message, 2)
        assert raised == [HandlerTimeout, HandlerTimeout]

    def test_go_on_with_the_next_message(self, bus: Bus) -> None:
        """B6"""
        seen: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"])
        def handle(body: int) -> None:
            while body == 0:
                time.sleep(0.01)
            seen.append(body)

        with running(bus):
            bus.publish_many("x", range(5))
            eventually(lambda: seen == [1, 2, 3, 4])

    def test_that_swallow_the_interrupt_are_left_behind_and_reported(
        self, bus: Bus, other: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """B6"""
        go = threading.Event()
        seen: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"])
        def handle(body: int) -> None:
            while body == 0 and not go.is_set():
                try:
                    time.sleep(0.01)
                except HandlerTimeout:
                    continue
            seen.append(body)

        with running(bus):
            message = bus.publish("x", 0)
            bus.publish("x", 1)
            eventually(lambda: seen == [1])
            is_put_off(bus, message)
            goes_on(bus, other)
            assert "ignores its timeout" in caplog.text
            go.set()
            eventually(lambda: 0 in seen)
            is_put_off(bus, message)

    def test_stuck_in_c_code_are_left_behind_and_reported(
        self, bus: Bus, other: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """B6: where no interrupt can reach them."""
        libc = ctypes.CDLL(None)
        ear, mouth = os.pipe()
        came_back = threading.Event()
        seen: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"])
        def handle(body: int) -> None:
            if body == 0:
                try:
                    libc.read(ear, ctypes.create_string_buffer(1), 1)
                finally:
                    came_back.set()
            seen.append(body)

        with running(bus):
            message = bus.publish("x", 0)
            bus.publish("x", 1)
            eventually(lambda: seen == [1])
            is_put_off(bus, message)
            goes_on(bus, other)
            assert "ignores its timeout" in caplog.text
            assert seen == [1]
            os.write(mouth, b"x")
            assert came_back.wait(60)
        os.close(ear)
        os.close(mouth)

    def test_that_deadlock_are_left_behind(self, bus: Bus, other: list[int]) -> None:
        """B6"""
        lock = threading.Lock()
        seen: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"])
        def handle(body: int) -> None:
            if body == 0:
                lock.acquire()
                lock.acquire()
            seen.append(body)

        with running(bus):
            message = bus.publish("x", 0)
            bus.publish("x", 1)
            eventually(lambda: seen == [1])
            is_put_off(bus, message)
            goes_on(bus, other)
        lock.release()

    def test_that_end_in_time_are_never_disturbed(self, bus: Bus) -> None:
        """B6: however close to the timeout, a call has one outcome, and the thread lives on."""
        ended: list[int] = []

        @bus.subscribe("x", queue="q", timeout="30ms", retry="never")
        def handle(body: int) -> None:
            time.sleep(0.028 + 0.0002 * (body % 20) if body % 3 else 0)  # a busy machine lets the short ones end
            ended.append(body)

        with running(bus):
            ids = bus.publish_many("x", range(60))
            eventually(lambda: all(state(bus, message, "q") in "XE" for message in ids))
            info = bus.broker.queue("q")
            assert info.late_answers == 0
            done = [state(bus, message, "q") for message in ids].count("X")
        assert 0 < done <= len(ended)

    def test_are_not_interrupted_inside_the_broker(self, bus: Bus) -> None:
        """B6: a handler that publishes all the time leaves the queues and the log whole."""
        published: list[str] = []

        @bus.subscribe("x", queue="q", timeout="20ms", retry="never")
        def handle(body: int) -> None:
            while True:
                published.append(bus.publish("kept", body))

        with running(bus):
            ids = bus.publish_many("x", range(15))
            eventually(lambda: all(state(bus, message, "q") == "E" for message in ids))
            assert bus.publish("kept", 0)
            eventually(lambda: bus.broker.queue("remuda.unrouted").size == 0, 60)
            kept = bus.broker.queue("remuda.unrouted")
        assert kept.dead >= len(published)

    def test_without_a_timeout_take_as_long_as_they_need(self, bus: Bus) -> None:
        """B6"""
        done: list[int] = []

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            time.sleep(0.5)
            done.append(body)

        with running(bus):
            bus.publish("x", 1)
            eventually(lambda: done == [1])


class TestCoroutines:
    def test_are_cancelled(self, bus: Bus, other: list[int]) -> None:
        """B6"""
        raised: list[type[BaseException]] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["200ms", "1h"])
        async def handle(body: Any) -> None:
            try:
                await asyncio.sleep(60)
            except BaseException as error:
                raised.append(type(error))
                raise

        with running(bus):
            message = bus.publish("x")
            is_put_off(bus, message, 2)
            goes_on(bus, other)
        assert raised == [asyncio.CancelledError, asyncio.CancelledError]

    def test_that_swallow_the_cancellation_are_left_behind_and_reported(
        self, bus: Bus, other: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """B6: and do not keep the bus from stopping."""
        seen: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"])
        async def handle(body: int) -> None:
            for _ in range(600 if body == 0 else 0):
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    continue
            seen.append(body)

        with running(bus):
            message = bus.publish("x", 0)
            bus.publish("x", 1)
            eventually(lambda: seen == [1])
            is_put_off(bus, message)
            goes_on(bus, other)
            assert "ignores its timeout" in caplog.text
            began = time.monotonic()
        assert time.monotonic() - began < 30.0
        gc.collect()  # what was left behind is thrown away without a word

    def test_that_block_their_loop_are_interrupted(self, bus: Bus, other: list[int]) -> None:
        """B6: and their neighbours on the loop are not charged."""
        seen: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"], threads=2)
        async def handle(body: int) -> None:
            while body == 0:
                time.sleep(0.01)
            seen.append(body)

        with running(bus):
            message = bus.publish("x", 0)
            goes_on(bus, other)
            is_put_off(bus, message)
            bus.publish("x", 1)
            eventually(lambda: seen == [1])

    def test_that_block_their_loop_for_good_are_left_behind_and_reported(
        self, bus: Bus, other: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """B6: another loop goes on with the queue."""
        go, came_back = threading.Event(), threading.Event()
        seen: list[int] = []
        neighbour: list[int] = []

        @bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"], threads=2)
        async def handle(body: int, attempt: Attempt) -> None:
            if body == 0:
                await asyncio.sleep(0.02)
                try:
                    go.wait(60)
                finally:
                    came_back.set()
            elif body == 1:
                neighbour.append(int(attempt))
                await asyncio.sleep(0.04)
            seen.append(body)

        with running(bus):
            message = bus.publish("x", 0)
            beside = bus.publish("x", 1)
            goes_on(bus, other)
            is_put_off(bus, message)
            bus.publish("x", 2)
            eventually(lambda: 2 in seen)
            assert "blocks its loop" in caplog.text
            eventually(lambda: state(bus, beside, "q") == "X")
            assert set(neighbour) == {1}
            go.set()
            assert came_back.wait(60)
            is_put_off(bus, message)
        assert 0 not in seen

    def test_without_a_timeout_take_as_long_as_they_need(self, bus: Bus) -> None:
        """B6"""
        done: list[int] = []

        @bus.subscribe("x", queue="q")
        async def handle(body: int) -> None:
            await asyncio.sleep(0.5)
            done.append(body)

        with running(bus):
            bus.publish("x", 1)
            eventually(lambda: done == [1])


class TestProcesses:
    def test_are_killed(self, bus: Bus, other: list[int], tmp_path: Path) -> None:
        """B6: and replaced."""
        path = tmp_path / "notes"
        bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"], executor="processes")(jobs.sleep)
        with running(bus):
            message = bus.publish("x", {"path": str(path), "seconds": "60"})
            is_put_off(bus, message)
            goes_on(bus, other)
            bus.publish("x", {"path": str(path), "seconds": "0"})
            eventually(lambda: jobs.notes(path) == ["began", "began", "ended"])

    def test_that_deadlock_are_killed(self, bus: Bus, other: list[int]) -> None:
        """B6"""
        bus.subscribe("x", queue="q", timeout=TIMEOUT, retry=["1h"], executor="processes")(jobs.deadlock)
        with running(bus):
            message = bus.publish("x", {})
            is_put_off(bus, message)
            goes_on(bus, other)
