"""B16: graceful stop and health."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remuda import Attempt, Bus, open_broker
from remuda.model.errors import BrokerClosed, DiskFull, RemudaError
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running, state


@pytest.fixture
def bus() -> Bus:
    return Bus()


SCRIPT = """
import os, signal, threading, time
from remuda import Bus

bus = Bus()

@bus.subscribe("x")
def handle(body: int) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    print("handled", flush=True)

bus.publish("x", 1)
bus.run()
print("stopped in order", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


class TestSigterm:
    def test_stops_a_script_in_order(self) -> None:
        """B16: as a container that is stopped."""
        ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
        assert ended.stdout == "handled\nstopped in order True\n"
        assert ended.returncode == 0

    def test_an_application_keeps_its_own_way(self, bus: Bus) -> None:
        seen: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        try:
            bus.subscribe("x", queue="q")(lambda body: os.kill(os.getpid(), signal.SIGTERM))
            bus.publish("x", 1)
            bus.run(until_idle=True)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert seen == [signal.SIGTERM]
        bus.close()


class TestStop:
    def test_lets_running_handlers_finish(self, bus: Bus) -> None:
        """B16: intake stops, what has begun ends, the rest goes back."""
        began, go, done = threading.Event(), threading.Event(), []

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            began.set()
            go.wait(60)
            done.append(body)

        runner = bus.start()
        ids = bus.publish_many("x", range(5))
        assert began.wait(60)
        threading.Timer(0.2, go.set).start()
        assert runner.stop(60)
        assert done == [0]
        assert [state(bus, message, "q") for message in ids] == ["X", "Q", "Q", "Q", "Q"]
        assert attempts(bus, ids[0], "q") == 1
        assert bus.broker.queue("q").in_flight == 0
        bus.close()

    def test_gives_back_at_once_what_was_fetched_but_not_begun(self, bus: Bus) -> None:
        """B16: it does not count as an attempt."""
        seen: list[tuple[int, int]] = []
        began = threading.Event()

        @bus.subscribe("x", queue="q")
        def handle(body: int, attempt: Attempt) -> None:
            seen.append((body, int(attempt)))
            if body == 200:
                began.set()
                time.sleep(0.3)

        runner = bus.start()
        bus.publish_many("x", range(400))
        assert began.wait(60)
        assert runner.stop(60)
        assert bus.broker.queue("q").in_flight == 0
        bus.run(until_idle=True)
        assert sorted(seen) == [(number, 1) for number in range(400)]
        bus.close()

    @pytest.mark.parametrize("executor", ["threads", "asyncio", "processes"])
    def test_past_the_limit_running_messages_go_back(self, bus: Bus, executor: str, tmp_path: Path) -> None:
        """B16"""
        path = tmp_path / "notes"

        def plain(job: dict[str, str]) -> None:
            jobs.note(job["path"], "began")
            while True:
                time.sleep(0.01)

        async def coroutine(job: dict[str, str]) -> None:
            jobs.note(job["path"], "began")
            await asyncio.sleep(60)

        handler: Any = {"threads": plain, "asyncio": coroutine, "processes": jobs.sleep}[executor]
        bus.subscribe("x", queue="q", executor=executor)(handler)
        earlier = set(threading.enumerate())
        runner = bus.start()
        message = bus.publish("x", {"path": str(path), "seconds": "60"})
        eventually(lambda: jobs.notes(path))
        began = time.monotonic()
        assert not runner.stop(0.2)
        assert time.monotonic() - began < 30
        assert state(bus, message, "q") == "Q"
        assert bus.broker.queue("q").in_flight == 0
        eventually(lambda: not [one for one in {*threading.enumerate()} - earlier if one.name == "remuda-q"])
        bus.close()

    def test_a_handler_that_publishes_while_the_bus_closes_can_end(self, bus: Bus) -> None:
        """B16"""
        began, done = threading.Event(), []

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            began.set()
            time.sleep(0.2)
            done.append(bus.publish("y", 1))

        bus.start()
        bus.publish("x", 1)
        assert began.wait(60)
        bus.close()
        assert len(done) == 1

    def test_from_a_handler(self, bus: Bus) -> None:
        """B16"""

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            bus.stop()

        bus.publish("x", 1)
        bus.run()
        assert bus.broker.queue("q").size == 0
        bus.close()

    def test_closing_from_a_handler_does_not_hang(self, bus: Bus) -> None:
        """B16"""

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            bus.close()

        bus.publish("x", 1)
        runner = bus.start()
        eventually(lambda: not runner.running)

    def test_on_control_c(self, bus: Bus) -> None:
        """B16"""
        done: list[int] = []

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            os.kill(os.getpid(), 2)
            time.sleep(0.2)
            done.append(body)

        bus.publish("x", 1)
        # A test run that was started in the background ignores the signal, as its parent does.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            bus.run()
        finally:
            signal.signal(signal.SIGINT, before)
        assert done == [1]
        bus.close()

    def test_twice_is_no_error(self, bus: Bus) -> None:
        """B16"""
        runner = bus.start()
        assert runner.stop(60)
        assert runner.stop(60)
        bus.stop()
        bus.close()
        bus.close()

    def test_and_start_again(self, bus: Bus) -> None:
        """B16"""
        seen: list[int] = []
        bus.subscribe("x", queue="x")(lambda body: seen.append(body))
        for number in range(3):
            with bus:
                bus.publish("x", number)
                bus.run(until_idle=True)
        assert seen == [0, 1, 2]

    def test_within_a_loop(self, bus: Bus) -> None:
        """B16: coroutines that run past the limit, when the bus is closed by a coroutine."""
        began = threading.Event()

        @bus.subscribe("x", queue="q")
        async def handle(body: int) -> None:
            began.set()
            await asyncio.sleep(60)

        async def main() -> None:
            runner = bus.start()
            await bus.publish_async("x", 1)
            assert await asyncio.to_thread(began.wait, 60)
            assert not runner.stop(0.1)

        asyncio.run(main())
        assert bus.broker.queue("q").waiting == 1
        bus.close()


class TestRunUntilIdle:
    def test_drains_what_handlers_publish_too(self, bus: Bus) -> None:
        """B16"""
        seen: list[int] = []

        @bus.subscribe("count")
        def count(body: int) -> None:
            seen.append(body)
            if body:
                bus.publish("count", body - 1)

        bus.publish("count", 30)
        bus.run(until_idle=True)
        assert seen == list(range(30, -1, -1))
        bus.close()

    def test_does_not_wait_for_what_is_delayed(self, bus: Bus) -> None:
        """B16"""
        bus.subscribe("x", queue="q")(lambda body: None)
        bus.publish("x", delay="1h")
        bus.run(until_idle=True)
        assert bus.broker.queue("q").delayed == 1
        bus.close()

    def test_gives_up_in_time(self, bus: Bus) -> None:
        """B16"""
        go = threading.Event()
        bus.subscribe("x", queue="q")(lambda body: go.wait(60))
        bus.publish("x")
        began = time.monotonic()
        threading.Timer(0.4, go.set).start()
        bus.run(until_idle=True, timeout="200ms")
        assert time.monotonic() - began < 30
        bus.close()


class TestHealth:
    def test_live_and_ready(self, bus: Bus) -> None:
        """B16"""
        assert bus.health() == {"live": True, "ready": False}
        runner = bus.start()
        assert bus.health() == {"live": True, "ready": True}
        runner.stop(1)
        assert bus.health() == {"live": True, "ready": False}
        bus.close()

    def test_of_a_broker_that_cannot_be_opened(self, tmp_path: Path) -> None:
        """B16"""
        with open_broker(tmp_path / "data", shared=False):
            health = Bus(tmp_path / "data").health()
            assert (health["live"], health["ready"]) == (False, False)
            assert "is open in process" in health["problems"]["broker"]

    def test_starting_twice_is_refused(self, bus: Bus) -> None:
        """B16"""
        with running(bus), pytest.raises(RemudaError, match="already running"):
            bus.start()

    def test_workers_end_quietly_when_the_broker_is_closed_under_them(
        self, bus: Bus, caplog: pytest.LogCaptureFixture
    ) -> None:
        """B16"""
        bus.subscribe("x", queue="x")(lambda body: None)

        @bus.subscribe("x")
        async def coroutine(body: Any) -> None: ...

        runner = bus.start()
        bus.broker.close()
        assert runner.stop(60)
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        with pytest.raises(BrokerClosed):
            bus.publish("x")
        bus.close()


FORKED = """
import os, sys
from remuda import Bus

bus = Bus(sys.argv[1])

@bus.on_startup
async def connect() -> None: ...

@bus.subscribe("x", queue="q")
async def handle(body: int) -> None:
    print("handled in", "child" if os.getpid() != parent else "parent", flush=True)

parent = os.getpid()
bus.start()
child = os.fork()
if child == 0:
    print(bus.running, bus.health()["ready"], bus, flush=True)
    bus.stop()
    bus.close()
    bus.start()
    print(bus.running, bus.health()["ready"], flush=True)
    bus.close()
    os._exit(0)
os.waitpid(child, 0)
print(bus.running, flush=True)
bus.close()
"""


def test_handlers_stay_with_the_process_that_started_them(tmp_path: Path) -> None:
    """B16, S5: a fork says so, and can start its own; else a server that forks late would look ready and do nothing."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "data")], capture_output=True, text=True, timeout=120
    )
    first, second, third = done.stdout.splitlines()
    assert first.startswith("False False <Bus at ")
    assert "running" not in first
    assert (second, third) == ("True True", "True"), done.stderr


@pytest.mark.parametrize("how", ["run_async", "start_async", "a loop per queue"])
def test_b16_a_coroutine_that_stops_its_bus_is_settled_first(tmp_path: Path, how: str) -> None:
    """B16: it is not handled again after a restart."""
    began, calls = time.monotonic(), list[int]()

    def opened() -> Bus:
        bus = Bus(tmp_path / "d", sync="os")

        @bus.subscribe("x", queue="q")
        async def handle(body: int) -> None:
            calls.append(body)
            await bus.stop_async()

        return bus

    async def main(bus: Bus) -> None:
        if how == "run_async":
            await bus.run_async()
            return
        await bus.start_async(loop_per_queue=how == "a loop per queue")
        while bus.running:
            await asyncio.sleep(0.01)
        await bus.stop_async()

    with opened() as bus:
        message = bus.publish("x", 1)
        asyncio.run(main(bus))
        eventually(lambda: state(bus, message, "q") == "X")
    with opened() as bus:
        assert bus.broker.queue("q").size == 0
    assert calls == [1]
    assert time.monotonic() - began < 9


def test_b16_a_queue_is_well_again_when_its_pulls_are_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a full disk was mended a bus stayed unready until each queue had settled something, which idle ones never
    do."""
    with Bus(tmp_path / "log") as bus:
        bus.subscribe("x", queue="x")(lambda body: None)
        broker: Any = bus.broker
        pull, full = broker.pull_while, threading.Event()

        def refuse(*given: Any, **named: Any) -> Any:
            if full.is_set():
                raise DiskFull("no room on the disk")
            return pull(*given, **named)

        monkeypatch.setattr(broker, "pull_while", refuse)
        full.set()
        bus.start()
        eventually(lambda: "no room" in bus.health().get("problems", {}).get("handlers", ""))
        full.clear()
        eventually(lambda: bus.health()["ready"])


def test_b16_a_stop_while_a_handlers_process_starts_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B16: nothing failed, so nothing says so."""
    for pause in (0, 0.02, 0.1):
        bus = Bus(tmp_path / f"d{pause}", sync="os")
        bus.subscribe("x", queue="q", executor="processes")(jobs.sleep)
        bus.publish("x", {"seconds": "0"})
        bus.start()
        time.sleep(pause)
        bus.stop("0s")
        bus.close()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
