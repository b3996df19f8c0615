"""B20 G5: a message that is being handled can be cancelled, wherever it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Context, HandlerFailed, InvalidOption, NotNow, Run, StopToken
from remuda.bus.publishing.tracking import MessageStatus
from remuda.model.life import LIVE
from remuda.model.state import State
from tests.bus.kit import events
from tests.server.site import until

EXECUTORS = ("threads", "asyncio", "processes")


def sleep_long(body: str) -> None:
    """In short steps, since a thread is interrupted between two of them."""
    Path(body).touch()
    for _ in range(6_000):
        time.sleep(0.01)


async def sleep_long_async(body: str) -> None:
    Path(body).touch()
    await asyncio.sleep(60)


def swallow(body: str) -> None:
    """Ignores whatever is raised in it."""
    Path(body).touch()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            time.sleep(0.01)
        except BaseException:
            continue


async def swallow_async(body: str) -> None:
    Path(body).touch()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            continue


def obey(body: str, stop: StopToken) -> None:
    Path(body).touch()
    if stop.wait(60):
        Path(f"{body}.told").touch()
        raise NotNow("told to stop")


def finish(body: str, stop: StopToken) -> int:
    """Ends well once it is told to stop."""
    Path(body).touch()
    stop.wait(60)
    return 7


def sleep_over_many(bodies: list[str]) -> None:
    for body in bodies:
        sleep_long(body)


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with Bus(tmp_path / "data") as bus:
        yield bus


def ended(bus: Bus, id: str) -> MessageStatus:
    status = until(lambda: (found := bus.status(id)).ended and found, "the end of the message")
    assert isinstance(status, MessageStatus)
    return status


def started(flag: Path) -> None:
    until(flag.exists, "the handler")


def sleeping(bus: Bus, flag: Path) -> str:
    """The id of a message whose handler runs."""

    @bus.subscribe("a", queue="q")
    def handle(body: str) -> None:
        Path(body).touch()
        for _ in range(6_000):
            time.sleep(0.01)

    bus.start()
    id = bus.publish("a", str(flag))
    started(flag)
    return id


def with_tests() -> dict[str, str]:
    """The environment of a process that imports this module."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def is_cancelled(bus: Bus, id: str, queue: str, who: str | None = "ann") -> None:
    status = ended(bus, id)
    assert (status.word, status.queues[queue].reason) == ("dead", "cancelled")
    (view,) = bus.broker.message(id).queues
    assert (view.state, view.attempts) == (State.DEAD, 1)
    if who is not None:
        (parked,) = bus.dead_letters(queue)
        assert (parked.reason, parked.attempts) == ("cancelled", 1)
        ends = [event for event in events(bus, queue) if event.reason == "cancelled"]
        assert [event.who for event in ends] == [who]
    info = bus.broker.queue(queue)
    assert (info.waiting, info.in_flight) == (0, 0)


@pytest.mark.parametrize("timeout", [None, "5m"])
def test_b20_a_handler_is_interrupted(bus: Bus, tmp_path: Path, executor: str, timeout: str | None) -> None:
    """B20 G5: the message is dead with the reason and who, is never retried, and who waits is told at once."""
    told: list[str] = []
    rules: Any = {"executor": executor, "retry": ["1s"] * 5} | ({"timeout": timeout} if timeout else {})
    bus.subscribe("a", queue="q", **rules)(sleep_long_async if executor == "asyncio" else sleep_long)
    bus.subscribe("failed", queue="failed")(lambda body: told.append(body))
    bus.start()
    flag, caught = tmp_path / "flag", list[Exception]()
    id = bus.publish("a", str(flag), failure_callback="failed", keep_result=True)
    started(flag)
    assert bus.cancel(id, who="ann") == 1
    is_cancelled(bus, id, "q")
    assert bus.cancel(id, who="ann") == 0
    until(lambda: told, "the failure callback")
    with pytest.raises(HandlerFailed, match="cancelled"):
        bus.result(id)
    flag.unlink()

    def call() -> None:
        try:
            bus.call("a", str(flag), timeout="5m")
        except Exception as error:
            caught.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    started(flag)
    (called,) = until(lambda: [one.id for worker in bus.broker.workers() for one in worker.running], "the call")
    assert bus.cancel(called) == 1
    calling.join(60)
    assert isinstance(caught[0], HandlerFailed)
    assert "cancelled" in str(caught[0])


@pytest.mark.parametrize("timeout", [None, "5m"])
def test_b20_one_that_ignores_the_interrupt_is_abandoned(
    bus: Bus, tmp_path: Path, executor: str, timeout: str | None
) -> None:
    """B20: and another worker takes its place."""
    done = tmp_path / "done"
    rules: Any = {"executor": executor, "threads": 1} | ({"timeout": timeout} if timeout else {})
    bus.subscribe("a", queue="q", **rules)(swallow_async if executor == "asyncio" else swallow)
    bus.start()
    id = bus.publish("a", str(tmp_path / "flag"))
    started(tmp_path / "flag")
    assert bus.cancel(id) == 1
    is_cancelled(bus, id, "q", None)
    bus.publish("a", str(done))
    started(done)
    bus.stop(0)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_b20_the_stop_token_comes_first(bus: Bus, tmp_path: Path, executor: str) -> None:
    """B20: a handler that gives up ends as cancelled, one that finishes has succeeded; others do not notice."""
    rules: Any = {"executor": executor, "threads": 2}
    bus.subscribe("obey", queue="obey", **rules)(obey)
    bus.subscribe("finish", queue="finish", **rules)(finish)
    bus.start()
    flags = {name: tmp_path / name for name in ("obeys", "beside", "finishes")}
    first = bus.publish("obey", str(flags["obeys"]))
    beside = bus.publish("obey", str(flags["beside"]))
    last = bus.publish("finish", str(flags["finishes"]), keep_result=True)
    for flag in flags.values():
        started(flag)
    assert bus.cancel(first, who="ann") == 1
    is_cancelled_in = ended(bus, first)
    assert is_cancelled_in.queues["obey"].reason == "cancelled"
    assert (tmp_path / "obeys.told").exists()
    assert bus.cancel(last) == 1
    assert bus.result(last, int, timeout="1m") == 7
    assert bus.status(beside).word == "running"
    assert not (tmp_path / "beside.told").exists()
    bus.cancel(beside)
    ended(bus, beside)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_b20_neighbours_of_a_batch_are_not_charged(bus: Bus, tmp_path: Path, executor: str) -> None:
    """B20: they come again, as if they had not been begun."""
    rules: Any = {"executor": executor, "threads": 1, "batch": 3, "batch_wait": "10s"}
    bus.subscribe("a", queue="q", **rules)(sleep_over_many)
    flags = [tmp_path / f"flag-{number}" for number in range(3)]
    ids = [bus.publish("a", str(flag)) for flag in flags]
    bus.start()
    started(flags[0])
    assert bus.cancel(ids[1], who="ann") == 1
    assert ended(bus, ids[1]).queues["q"].reason == "cancelled"
    for id in (ids[0], ids[2]):
        assert bus.status(id).queues["q"].state in LIVE
        assert bus.cancel(id) == 1
    for id in ids:
        assert ended(bus, id).queues["q"].attempts <= 1


def test_b20_one_that_a_worker_has_and_has_not_begun_ends_too(bus: Bus, tmp_path: Path) -> None:
    """B20: while the one before it runs; the rest of the delivery is handled."""
    begun, go, done = threading.Event(), threading.Event(), list[int]()

    @bus.subscribe("a", queue="q", threads=1)
    def handle(body: int) -> None:
        begun.set()
        go.wait(60)
        done.append(body)

    ids = [bus.publish("a", number) for number in range(20)]
    bus.start()
    assert begun.wait(60)
    assert bus.cancel(ids[7], who="ann") == 1
    go.set()
    for id in ids:
        ended(bus, id)
    assert bus.status(ids[7]).queues["q"].reason == "cancelled"
    assert sorted(done) == [number for number in range(20) if number != 7]


def test_b20_a_coroutine_that_blocks_its_loop(bus: Bus, tmp_path: Path) -> None:
    """B20: it is interrupted from outside."""

    @bus.subscribe("a", queue="q")
    async def block(body: str) -> None:
        sleep_long(body)

    bus.start()
    id = bus.publish("a", str(tmp_path / "flag"))
    started(tmp_path / "flag")
    assert bus.cancel(id, who="ann") == 1
    is_cancelled(bus, id, "q")


def race(bus: Bus, rounds: int, publish: Callable[[int], str], runs: dict[int, int], pause: float) -> int:
    """Cancel each message at about the time when its handler ends; how many were cancelled."""
    cancelled = 0
    for number in range(rounds):
        id = publish(number)
        time.sleep(pause * (number % 20) / 10)
        count = bus.cancel(id)
        status = ended(bus, id)
        assert status.word in ("dead", "done")
        if status.word == "dead":
            cancelled += 1
            assert status.queues["q"].reason == "cancelled"
            assert count == 1
        assert runs.get(number, 0) <= 1, "it ran twice"
    return cancelled


@pytest.mark.parametrize("kind", ["plain", "context", "coroutine"])
def test_b20_a_cancellation_that_races_with_success(bus: Bus, kind: str) -> None:
    """B20: a message has succeeded or was cancelled, never both, and never comes again; its worker lives on."""
    runs: dict[int, int] = {}

    def count(body: int) -> None:
        runs[body] = runs.get(body, 0) + 1

    if kind == "plain":

        @bus.subscribe("a", queue="q", threads=1, retry=[0, 0])
        def plain(body: int) -> None:
            count(body)
            for _ in range(5):
                time.sleep(0.001)

    elif kind == "context":

        @bus.subscribe("a", queue="q", threads=1, retry=[0, 0])
        def with_context(body: int, context: Context) -> None:
            count(body)
            for _ in range(5):
                time.sleep(0.001)

    else:

        @bus.subscribe("a", queue="q", threads=1, retry=[0, 0])
        async def coroutine(body: int) -> None:
            count(body)
            for _ in range(5):
                await asyncio.sleep(0.001)

    bus.start()
    race(bus, 150, lambda number: bus.publish("a", number), runs, 0.007)
    last = bus.publish("a", 1_000)
    assert ended(bus, last).word == "done"
    info = bus.broker.queue("q")
    assert (info.waiting, info.in_flight) == (0, 0)


def test_b20_running_may_be_left(bus: Bus, tmp_path: Path) -> None:
    """B20"""
    go = threading.Event()

    @bus.subscribe("a", queue="q")
    def wait(body: str) -> None:
        Path(body).touch()
        go.wait(60)

    bus.start()
    id = bus.publish("a", str(tmp_path / "flag"))
    started(tmp_path / "flag")
    assert bus.cancel(id, running="leave") == 0
    with pytest.raises(InvalidOption, match="running must be"):
        bus.cancel(id, running="maybe")  # type: ignore[arg-type]
    go.set()
    assert ended(bus, id).word == "done"


APP = """
import sys
from remuda import Bus
from tests.bus.test_cancel_running import sleep_long, swallow

bus = Bus(sys.argv[1])
bus.subscribe("a", queue="q", threads=1)({"sleep": sleep_long, "swallow": swallow}[sys.argv[2]])
bus.run()
"""


def other_process(tmp_path: Path, handler: str) -> subprocess.Popen[bytes]:
    (tmp_path / "app.py").write_text(APP)
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "app.py"), str(tmp_path / "data"), handler],
        env=with_tests(),
    )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


def test_b20_in_another_process_that_shares_the_directory(bus: Bus, tmp_path: Path) -> None:
    """B20 G5: the worker hears it with its next sign."""
    assert bus.broker.health().live
    other = other_process(tmp_path, "sleep")
    try:
        until(lambda: any(one.name == "q" for one in bus.broker.queues()), "the queue")
        id = bus.publish("a", str(tmp_path / "flag"))
        started(tmp_path / "flag")
        until(lambda: bus.broker.workers(), "the worker's sign")
        assert asyncio.run(bus.cancel_async(id, who="ann")) == 1
        is_cancelled(bus, id, "q")
    finally:
        end(other)


def test_b20_the_worker_is_killed_after_the_cancellation(bus: Bus, tmp_path: Path) -> None:
    """B20: its message ends, and no other worker handles it."""
    assert bus.broker.health().live
    others = [other_process(tmp_path, "swallow")]
    try:
        until(lambda: any(one.name == "q" for one in bus.broker.queues()), "the queue")
        id = bus.publish("a", str(tmp_path / "flag"))
        started(tmp_path / "flag")
        until(lambda: bus.broker.workers(), "the worker's sign")
        assert bus.cancel(id, who="ann") == 1
        others[0].send_signal(signal.SIGKILL)
        others[0].wait(60)
        others.append(other_process(tmp_path, "swallow"))
        status = ended(bus, id)
        assert (status.word, status.queues["q"].reason) == ("dead", "cancelled")
    finally:
        for other in others:
            end(other)


def test_b20_a_run_of_a_workflow_is_left_to_its_own_rule(
    bus: Bus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B20 G4: `bus.workflows.cancel` ends it, with its undos."""
    caplog.set_level(logging.ERROR)
    flag, go, undone = tmp_path / "flag", threading.Event(), list[str]()

    def book(what: str) -> str:
        return what

    def unbook(what: str) -> None:
        undone.append(what)

    def wait(what: str) -> None:
        flag.touch()
        go.wait(60)

    @bus.workflow(name="trip")
    def trip(run: Run, body: str) -> None:
        run.step(book, "flight", undo=unbook)
        run.step(wait, "hotel")
        run.sleep("1s")  # and looks whether it was cancelled
        run.step(book, "car")

    bus.start()
    id = bus.workflows.start("trip", "x")
    started(flag)
    assert bus.cancel(id) == 0
    assert bus.workflows.cancel(id)
    go.set()
    until(lambda: bus.workflows.status(id).state == "cancelled", "the end of the run")
    assert undone == ["flight"]
