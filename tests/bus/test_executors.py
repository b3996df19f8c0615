"""B8: concurrency, and the three executors."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus, Context, Message
from remuda.model.errors import InvalidOption
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running, state


@pytest.fixture
def bus() -> Bus:
    return Bus()


class Together:
    """How many run at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._guard = threading.Lock()

    def __enter__(self) -> None:
        with self._guard:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *exc: object) -> None:
        with self._guard:
            self.now -= 1


class TestConcurrency:
    def test_is_one_by_default(self, bus: Bus) -> None:
        """B8"""
        together, done = Together(), []

        @bus.subscribe("x")
        def handle(body: int) -> None:
            with together:
                time.sleep(0.005)
            done.append(body)

        with running(bus):
            bus.publish_many("x", range(20))
            eventually(lambda: len(done) == 20)
        assert together.most == 1
        assert done == list(range(20))

    def test_of_threads(self) -> None:
        """B8: `message.threads.<queueId>`."""
        bus = Bus(settings={"message.threads.q": 4})
        together, done = Together(), []
        all_here = threading.Barrier(4)

        @bus.subscribe("x", queue="q")
        def handle(body: int) -> None:
            with together:
                all_here.wait(60)
            done.append(body)

        with running(bus):
            bus.publish_many("x", range(8))
            eventually(lambda: len(done) == 8)
        assert together.most == 4

    def test_of_coroutines(self, bus: Bus) -> None:
        """B8"""
        together, done = Together(), []

        @bus.subscribe("x", threads=5)
        async def handle(body: int) -> None:
            with together:
                await asyncio.sleep(0.02)
            done.append(body)

        with running(bus):
            bus.publish_many("x", range(30))
            eventually(lambda: len(done) == 30)
        assert 2 <= together.most <= 5

    def test_of_processes(self, bus: Bus, tmp_path: Path) -> None:
        """B8"""
        path = tmp_path / "notes"
        bus.subscribe("x", threads=2, executor="processes")(jobs.write)
        with running(bus):
            bus.publish_many("x", [{"path": str(path), "name": str(number)} for number in range(40)])
            eventually(lambda: len(jobs.notes(path)) == 40)
        written = [line.split() for line in jobs.notes(path)]
        assert sorted(int(number) for number, _ in written) == list(range(40))
        assert str(os.getpid()) not in {process for _, process in written}

    @pytest.mark.parametrize("executor", ["threads", "asyncio"])
    def test_a_slow_message_does_not_hold_back_those_taken_with_it(self, bus: Bus, executor: str) -> None:
        """B8: what a worker took along goes to another."""
        go = threading.Event()
        seen: list[int] = []

        def plain(body: int) -> None:
            if body == 300:
                go.wait(100)
            seen.append(body)

        async def coroutine(body: int) -> None:
            while body == 300 and not go.is_set():
                await asyncio.sleep(0.01)
            seen.append(body)

        bus.subscribe("x", threads=2)(plain if executor == "threads" else coroutine)
        with running(bus):
            bus.publish_many("x", range(600))
            eventually(lambda: len(seen) == 599)
            go.set()
            eventually(lambda: len(seen) == 600)
        assert sorted(seen) == list(range(600))

    def test_a_slow_message_does_not_hold_back_others_in_its_process(self, bus: Bus, tmp_path: Path) -> None:
        """B8: calls that have not begun are taken back, and none is made twice."""
        path, go = tmp_path / "notes", tmp_path / "go"
        todo = [{"path": str(path), "name": str(number)} for number in range(300)]
        todo[150]["until"] = str(go)
        bus.subscribe("x", queue="q", threads=2, executor="processes")(jobs.wait_if_told)
        with running(bus):
            ids = bus.publish_many("x", todo)
            eventually(lambda: len(jobs.notes(path)) == 299)
            go.touch()
            eventually(lambda: bus.broker.queue("q").size == 0)
            assert {attempts(bus, message, "q") for message in ids} == {1}
        assert sorted(int(line.split()[0]) for line in jobs.notes(path)) == list(range(300))


class TestChoice:
    def test_coroutines_run_on_a_loop_and_functions_in_threads(self, bus: Bus) -> None:
        """B8"""
        loops: list[bool] = []

        def has_loop() -> bool:
            try:
                return asyncio.get_running_loop() is not None
            except RuntimeError:
                return False

        @bus.subscribe("x")
        async def coroutine(body: Any) -> None:
            loops.append(has_loop())

        @bus.subscribe("x")
        def function(body: Any) -> None:
            loops.append(has_loop())

        with running(bus):
            bus.publish("x")
            eventually(lambda: sorted(loops) == [False, True])

    def test_each_queue_has_a_loop_of_its_own(self, bus: Bus) -> None:
        """B6, B8: so that one that is blocked blocks no other."""
        went_on = threading.Event()
        blocked: list[bool] = []

        @bus.subscribe("x")
        async def blocks(body: Any) -> None:
            blocked.append(went_on.wait(30))

        @bus.subscribe("x")
        async def goes_on(body: Any) -> None:
            went_on.set()

        with running(bus):
            bus.publish("x")
            eventually(lambda: blocked)
        assert blocked == [True]

    def test_plain_functions_may_run_on_a_loop(self, bus: Bus) -> None:
        """B8"""
        seen: list[int] = []

        @bus.subscribe("x", executor="asyncio")
        def handle(body: int) -> None:
            seen.append(body)

        with running(bus):
            bus.publish_many("x", range(5))
            eventually(lambda: seen == [0, 1, 2, 3, 4])

    def test_what_cannot_be_sent_to_a_process_is_refused_at_start(self, bus: Bus) -> None:
        """B8"""

        @bus.subscribe("x", executor="processes")
        def local(body: Any) -> None: ...

        with pytest.raises(InvalidOption, match="top level of an importable module"):
            bus.start()
        bus.close()


class TestProcesses:
    @pytest.mark.parametrize("how", ["exit", "kill", "abort"])
    def test_a_crash_is_one_failed_attempt_of_that_one_message(self, bus: Bus, tmp_path: Path, how: str) -> None:
        """B8: its neighbours are not charged, although they were fetched together."""
        path = tmp_path / "notes"
        bus.subscribe("x", queue="q", executor="processes", retry=["1h"])(jobs.die_if_told)
        jobs_to_do = [{"path": str(path), "name": str(number)} for number in range(12)]
        jobs_to_do[5]["how"] = how
        with running(bus):
            ids = bus.publish_many("x", jobs_to_do)
            eventually(lambda: len(set(jobs.notes(path))) == 12)
            eventually(lambda: [state(bus, message, "q") for message in ids].count("X") == 11)
            assert state(bus, ids[5], "q") == "R"
            assert [attempts(bus, message, "q") for message in ids] == [1] * 12
            reason = next(view.reason for view in bus.broker.message(ids[5]).queues)
        assert reason is not None
        assert "crashed with exit code" in reason
        assert sorted(jobs.notes(path)) == sorted(f"{number} 1" for number in range(12))

    def test_a_retry_after_a_crash_is_the_second_attempt(self, bus: Bus, tmp_path: Path) -> None:
        """B4, B8"""
        path = tmp_path / "notes"
        bus.subscribe("x", queue="q", executor="processes", retry=["10ms"])(jobs.die_if_told)
        with running(bus):
            message = bus.publish("x", {"path": str(path), "name": "a", "how": "once"})
            eventually(lambda: state(bus, message, "q") == "X")
        assert jobs.notes(path) == ["a 1", "a 2"]

    def test_a_process_that_died_between_messages_charges_nobody(self, bus: Bus, tmp_path: Path) -> None:
        """B8"""
        path = tmp_path / "notes"
        bus.subscribe("x", queue="q", executor="processes", retry="never")(jobs.write)
        with running(bus):
            bus.publish("x", {"path": str(path), "name": "a"})
            eventually(lambda: jobs.notes(path))
            process = int(jobs.notes(path)[0].split()[1])
            os.kill(process, 9)
            eventually(lambda: not is_there(process))
            message = bus.publish("x", {"path": str(path), "name": "b"})
            eventually(lambda: len(jobs.notes(path)) == 2)
            eventually(lambda: state(bus, message, "q") == "X")
            assert attempts(bus, message, "q") == 1

    @pytest.mark.parametrize(("how", "reason"), [("sys.exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt")])
    def test_whatever_is_raised_is_a_failure(self, bus: Bus, tmp_path: Path, how: str, reason: str) -> None:
        """B8"""
        path = tmp_path / "notes"
        bus.subscribe("x", queue="q", executor="processes", retry=["1h"])(jobs.die_if_told)
        with running(bus):
            message = bus.publish("x", {"path": str(path), "name": "a", "how": how})
            eventually(lambda: state(bus, message, "q") == "R")
            view = next(view for view in bus.broker.message(message).queues)
        assert view.reason is not None
        assert view.reason.startswith(reason)

    def test_run_coroutines_and_lists(self, bus: Bus, tmp_path: Path) -> None:
        """B8"""
        path = tmp_path / "notes"
        answers: list[str] = []
        bus.subscribe("x", executor="processes")(jobs.write_async)
        bus.subscribe("y", executor="processes", batch=5)(jobs.many)

        @bus.subscribe("answer")
        def take(body: str) -> None:
            answers.append(body)

        with running(bus):
            bus.publish("x", {"path": str(path), "name": "one"}, callback="answer")
            bus.publish_many("y", [{"path": str(path), "name": name} for name in "ab"], callback="answer")
            eventually(lambda: sorted(answers) == ["a", "b", "one"])

    @pytest.mark.parametrize("job", [jobs.publish, jobs.publish_async, jobs.publish_from_thread])
    def test_publish_through_their_parent(self, job: Any) -> None:
        """B8, B11: through middleware once, linked to the message that caused it."""
        bus = Bus(middleware=[jobs.Marks()], user="ann")
        seen: list[dict[str, str]] = []
        bus.subscribe("x", executor="processes")(job)

        @bus.subscribe("job.published")
        def take(context: Context) -> None:
            seen.append(dict(context.headers))

        with running(bus):
            message = bus.publish("x", {})
            eventually(lambda: seen)
        assert seen[0]["marks"] == "+"
        if job is not jobs.publish_from_thread:
            assert seen[0]["cap-corr-id"] == message
            assert seen[0]["remuda-user"] == "ann"

    def test_cannot_open_the_broker_and_say_so(self, bus: Bus) -> None:
        """B8"""
        bus.subscribe("x", queue="q", executor="processes", retry="never")(jobs.ask_for_broker)
        with running(bus):
            message = bus.publish("x", {})
            eventually(lambda: state(bus, message, "q") == "E")
            assert "only its parent process has the broker" in bus.dead_letters("q")[0].reason

    def test_take_messages_that_were_published_without_headers(self, bus: Bus, tmp_path: Path) -> None:
        """B8"""
        path = tmp_path / "notes"
        bus.subscribe("x", queue="q", executor="processes")(jobs.write)
        body = b'{"path": "%s"}' % str(path).encode()
        with running(bus):
            bus.publish_messages([Message("x", body)])
            eventually(lambda: jobs.notes(path))

    def test_that_do_not_start_are_tried_again_and_charge_nobody(
        self, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """B8"""
        monkeypatch.setattr("remuda.bus.execution.processes.child_main.main", abs)
        bus.subscribe("x", queue="q", executor="processes", retry="never")(jobs.write)
        with running(bus):
            message = bus.publish("x", {"path": str(tmp_path / "notes")})
            eventually(lambda: "next try in" in caplog.text)
            assert state(bus, message, "q") == "Q"
            health = bus.health()
            assert (health["live"], health["ready"]) == (True, False)
            assert "handlers" in health["problems"]
            monkeypatch.undo()
            eventually(lambda: state(bus, message, "q") == "X")
            assert bus.health() == {"live": True, "ready": True}

    def test_leave_no_process_behind(self, bus: Bus, tmp_path: Path) -> None:
        """B8, B16"""
        path = tmp_path / "notes"
        bus.subscribe("x", executor="processes")(jobs.write)
        with running(bus):
            bus.publish("x", {"path": str(path)})
            eventually(lambda: jobs.notes(path))
        assert not is_there(int(jobs.notes(path)[0].split()[-1]))


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
