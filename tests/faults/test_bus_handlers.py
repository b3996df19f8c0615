"""B4, B6, B8: handlers that do their worst. Nothing is lost, attempts are counted right, others are unaffected."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from remuda import Attempt, Bus
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running, state

pytestmark = [pytest.mark.faults]


class Odd(BaseException):
    """Neither an Exception nor known to anyone."""


def exits(body: Any) -> NoReturn:
    sys.exit(1)


def quits(body: Any) -> NoReturn:
    raise KeyboardInterrupt


def is_odd(body: Any) -> NoReturn:
    raise Odd("odd")


def overflows(body: Any) -> Any:
    return overflows(body)


async def exits_async(body: Any) -> NoReturn:
    sys.exit(1)


async def quits_async(body: Any) -> NoReturn:
    raise KeyboardInterrupt


async def is_odd_async(body: Any) -> NoReturn:
    raise Odd("odd")


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.mark.parametrize(
    ("worst", "reason"),
    [
        (exits, "SystemExit: 1"),
        (quits, "KeyboardInterrupt: "),
        (is_odd, "Odd: odd"),
        (overflows, "RecursionError: "),
        (exits_async, "SystemExit: 1"),
        (quits_async, "KeyboardInterrupt: "),
        (is_odd_async, "Odd: odd"),
    ],
)
def test_whatever_a_handler_raises_is_one_failed_attempt(bus: Bus, worst: Callable[[Any], Any], reason: str) -> None:
    """B4: the worker lives on, and so do the other queues."""
    others: list[int] = []
    bus.subscribe("x", queue="q", retry=["50ms"])(worst)
    bus.subscribe("other", queue="other")(lambda body: others.append(body))
    with running(bus):
        ids = bus.publish_many("x", range(3))
        bus.publish_many("other", range(3))
        eventually(lambda: all(state(bus, message, "q") == "E" for message in ids))
        eventually(lambda: others == [0, 1, 2])
        assert [attempts(bus, message, "q") for message in ids] == [2, 2, 2]
        assert {letter.reason[: len(reason)] for letter in bus.dead_letters("q")} == {reason}


class TestForks:
    @pytest.mark.parametrize("executor", ["threads", "asyncio", "processes"])
    def test_a_copy_that_comes_back_from_the_handler_ends_there(self, bus: Bus, executor: str, tmp_path: Path) -> None:
        """B8: each message is handled once and answered once, by the original."""
        path = tmp_path / "notes"
        answers: list[str] = []
        handler: Any = fork_async if executor == "asyncio" else jobs.fork_and_return
        bus.subscribe("x", queue="q", executor=executor)(handler)
        bus.subscribe("answer", queue="answers")(lambda body: answers.append(body))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with running(bus):
                ids = bus.publish_many("x", [{"path": str(path), "name": name} for name in "abcde"], callback="answer")
                eventually(lambda: len(answers) == 5)
                eventually(lambda: all(state(bus, message, "q") == "X" for message in ids))
                time.sleep(0.2)
                assert [attempts(bus, message, "q") for message in ids] == [1] * 5
        assert answers == ["original"] * 5
        assert sorted(jobs.notes(path)) == sorted(f"{name} {who}" for name in "abcde" for who in ("copy", "original"))

    def test_a_process_that_dies_while_its_copy_lives_is_noticed(self, bus: Bus) -> None:
        """B8: although the copy keeps its pipes open."""
        bus.subscribe("x", queue="q", executor="processes", retry=["10ms"])(jobs.fork_and_die)
        with running(bus):
            message = bus.publish("x", {})
            eventually(lambda: state(bus, message, "q") == "X")
            assert attempts(bus, message, "q") == 2


async def fork_async(job: dict[str, str]) -> str:
    return jobs.fork_and_return(job)


@pytest.mark.parametrize("how", ["exit", "memory", "abort", "kill"])
def test_a_process_that_goes_down_costs_one_attempt_of_its_message(bus: Bus, how: str, tmp_path: Path) -> None:
    """B8: exits, exhausts memory, aborts, is killed; with two processes and many neighbours."""
    path = tmp_path / "notes"
    bus.subscribe("x", queue="q", executor="processes", threads=2, retry=["1h"])(jobs.die_if_told)
    todo = [{"path": str(path), "name": f"{number}"} for number in range(30)]
    for number in (7, 15, 16):
        todo[number]["how"] = how
    with running(bus):
        ids = bus.publish_many("x", todo)
        eventually(lambda: [state(bus, message, "q") for message in ids].count("X") == 27)
        eventually(lambda: [state(bus, message, "q") for message in ids].count("R") == 3)
        assert [attempts(bus, message, "q") for message in ids] == [1] * 30
        reason = bus.broker.message(ids[7]).queues[0].reason or ""
    assert ("MemoryError" if how == "memory" else "crashed with exit code") in reason
    assert sorted(jobs.notes(path)) == sorted(f"{number} 1" for number in range(30))


def test_handlers_that_deadlock_each_other_hold_up_nobody_else(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """B6: two queues that wait for each other's locks, and one beside them."""
    monkeypatch.setattr("remuda.bus.execution.watchdog.GRACE", 0.3)
    one, two = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)
    others: list[int] = []

    def first(body: Any, attempt: Attempt) -> None:
        if attempt == 1:
            with one:
                both.wait(60)
                with two:
                    pass

    def second(body: Any, attempt: Attempt) -> None:
        if attempt == 1:
            with two:
                both.wait(60)
                with one:
                    pass

    bus.subscribe("x", queue="first", timeout="300ms", retry=["50ms"])(first)
    bus.subscribe("x", queue="second", timeout="300ms", retry=["50ms"])(second)
    bus.subscribe("x", queue="other")(lambda body: others.append(body))
    with running(bus):
        ids = [bus.publish("x", 0)]
        eventually(lambda: others == [0])
        eventually(lambda: [state(bus, ids[0], queue) for queue in ("first", "second")] == ["X", "X"])
        assert [attempts(bus, ids[0], queue) for queue in ("first", "second")] == [2, 2]


@pytest.mark.alone  # an interrupt that lands in a destructor is lost, and its thread left behind
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_thousand_timeouts_lose_nothing(bus: Bus) -> None:
    """B6: many calls that end at about the time they are interrupted, in several threads."""
    ended: list[int] = []
    before = threading.active_count()

    @bus.subscribe("x", queue="q", timeout="10ms", retry=["1ms"] * 5000, threads=8)
    def handle(body: int, attempt: Attempt) -> None:
        time.sleep(max(0.0095 + (body % 10) * 0.0001 - int(attempt) * 0.0002, 0))  # in the end it is quick enough
        ended.append(body)

    with running(bus):
        ids = bus.publish_many("x", range(200))
        eventually(lambda: bus.broker.queue("q").size == 0, 200)
        info = bus.broker.queue("q")
        assert info.late_answers == 0
        assert {state(bus, message, "q") for message in ids} == {"X"}
    assert set(ended) == set(range(200))
    assert threading.active_count() < before + 20
