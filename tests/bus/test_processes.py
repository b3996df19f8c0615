"""B8: a process works through a round of messages, and its parent knows what became of each, also after a crash."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from remuda import Bus
from remuda.bus import child
from remuda.bus.hand import Rest
from remuda.bus.progress import Progress
from remuda.bus.servant import Crash, Servant
from remuda.core.effects import Answer
from remuda.model.messages import Messages
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running, state

SIZE = 100
Hire = Callable[..., Servant]
Todo = list[dict[str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def todo(path: Path) -> Todo:
    return [{"path": str(path), "name": str(number)} for number in range(SIZE)]


@pytest.fixture
def hire() -> Iterator[Hire]:
    hired: list[Servant] = []

    def start(handler: Callable[..., Any], **options: Any) -> Servant:
        bus = Bus()
        bus.subscribe("x", queue="q", **options)(handler)
        work = next(work for work in bus.works() if work.queue == "q")
        hired.append(Servant(work.duties, SIZE, lambda messages: [], threading.Event()))
        bus.close()
        return hired[-1]

    yield start
    for servant in hired:
        servant.close()


def begin(servant: Servant, todo: Todo, headers: Mapping[str, str] | None = None) -> Progress:
    bodies = [msgspec.json.encode(job) for job in todo]
    messages = Messages(bodies=bodies, name="x", mime_type="application/json", headers=headers or {})
    assert servant.begin(messages, [1] * len(bodies))
    return Progress(servant.slate, len(bodies))


def listen(servant: Servant, progress: Progress) -> str:
    """The next word but for outcomes, which are taken down."""
    while True:
        said = servant.listen(10)
        assert said is not None
        if said[0] != child.TOLD:
            return said[0]
        progress.hear(said[1])


def ended(rest: Rest) -> dict[int, Answer]:
    return {row: outcome.answer for rows, outcome in rest.ended for row in rows}


class TestRounds:
    def test_a_crash_amid_a_hundred_is_that_of_one_call_and_loses_no_outcome(self, hire: Hire, todo: Todo) -> None:
        todo[7]["how"], todo[50]["how"] = "raise", "exit"
        servant = hire(jobs.reply_or_die)
        progress = begin(servant, todo, {"cap-callback-name": "answers"})
        with pytest.raises(Crash, match="exit code 7"):
            listen(servant, progress)
        rest = progress.take()
        assert rest.running == [50]
        assert sorted(rest.waiting) == list(range(51, 100))
        expected = {row: Answer.NEGATIVE if row == 7 else Answer.ACKNOWLEDGE for row in range(50)}
        assert ended(rest) == expected
        replies = {rows[0]: outcome.replies[0] for rows, outcome in rest.ended if outcome.replies}
        assert {row: reply.body for row, reply in replies.items() if reply} == {
            row: b'"%d"' % row for row in range(50) if row != 7
        }

    def test_a_crash_right_after_the_last_call_is_nobodys(self, hire: Hire, todo: Todo) -> None:
        todo[-1]["at"] = "_say"
        servant = hire(jobs.die_later)
        progress = begin(servant, todo)
        with pytest.raises(Crash, match="exit code 5"):
            listen(servant, progress)
        rest = progress.take()
        assert ended(rest) == dict.fromkeys(range(100), Answer.ACKNOWLEDGE)
        assert rest.running == rest.waiting == []

    def test_a_crash_between_two_calls_is_nobodys(self, hire: Hire, todo: Todo) -> None:
        todo[50]["at"] = "begin"
        servant = hire(jobs.die_later)
        progress = begin(servant, todo)
        with pytest.raises(Crash, match="exit code 5"):
            listen(servant, progress)
        rest = progress.take()
        assert sorted(ended(rest)) == list(range(51))
        assert rest.running == []
        assert sorted(rest.waiting) == list(range(51, 100))

    def test_outcomes_for_which_the_slate_has_no_room_survive_a_crash(self, hire: Hire, todo: Todo) -> None:
        for row in range(20):
            todo[row]["times"] = "5000"
        todo[20]["how"] = "exit"
        servant = hire(jobs.reply_or_die)
        progress = begin(servant, todo, {"cap-callback-name": "answers"})
        with pytest.raises(Crash):
            listen(servant, progress)
        rest = progress.take()
        assert {rows[0]: len(outcome.replies) for rows, outcome in rest.ended} == dict.fromkeys(range(20), 1)
        assert rest.running == [20]

    def test_a_recall_gives_back_what_has_not_begun(self, hire: Hire, todo: Todo, path: Path) -> None:
        todo[30]["how"] = "sleep"
        servant = hire(jobs.reply_or_die)
        progress = begin(servant, todo)
        eventually(lambda: len(jobs.notes(path)) == 31)
        servant.recall()
        assert listen(servant, progress) == child.CLOSED
        rest = progress.take()
        assert sorted(ended(rest)) == list(range(30))
        assert rest.running == [30]
        assert sorted(rest.waiting) == list(range(31, 100))

    def test_a_recall_that_comes_too_late_spares_the_next_round(self, hire: Hire, todo: Todo) -> None:
        servant = hire(jobs.reply_or_die)
        for _ in range(20):
            progress = begin(servant, todo[:5])
            assert listen(servant, progress) == child.OVER
            assert len(ended(progress.take())) == 5
            servant.recall()

    def test_a_crash_while_a_list_is_decoded_is_an_attempt_of_all(self, hire: Hire, todo: Todo) -> None:
        """Next time each has a call of its own."""
        todo[3]["how"] = "exit"
        servant = hire(jobs.many_fragile, batch=10)
        progress = begin(servant, todo[:10])
        with pytest.raises(Crash, match="exit code 4"):
            listen(servant, progress)
        rest = progress.take()
        assert rest.running == list(range(10))
        assert rest.waiting == []

    def test_messages_may_have_any_mapping_as_headers(self, hire: Hire, todo: Todo) -> None:
        servant = hire(jobs.reply_or_die)
        progress = begin(servant, todo, MappingProxyType({"a": "b"}))
        assert listen(servant, progress) == child.OVER
        assert len(ended(progress.take())) == 100

    def test_an_answer_that_cannot_leave_the_process_is_a_failure(self, hire: Hire, todo: Todo) -> None:
        todo[1]["how"] = "odd"
        servant = hire(jobs.reply_or_die)
        progress = begin(servant, todo[:3], {"cap-callback-name": "answers"})
        assert listen(servant, progress) == child.OVER
        found = ended(progress.take())
        assert [found[row] for row in range(3)] == [Answer.ACKNOWLEDGE, Answer.NEGATIVE, Answer.ACKNOWLEDGE]

    def test_a_copy_that_is_interrupted_says_nothing(self, hire: Hire, todo: Todo, path: Path) -> None:
        servant = hire(jobs.fork_and_interrupt)
        progress = begin(servant, todo[:3])
        assert listen(servant, progress) == child.OVER
        assert ended(progress.take()) == dict.fromkeys(range(3), Answer.ACKNOWLEDGE)
        assert jobs.notes(path) == ["1"] * 3


class TestCrew:
    def test_a_crash_among_many_charges_one_message_and_repeats_none(self, path: Path) -> None:
        """B8: with replies of all others, each once."""
        bus = Bus()
        answers: list[str] = []
        todo = [{"path": str(path), "name": str(number)} for number in range(600)]
        todo[400]["how"] = "exit"
        bus.subscribe("x", queue="q", executor="processes", retry=["1h"])(jobs.reply_or_die)
        bus.subscribe("answer", queue="answers")(lambda body: answers.append(body))
        with running(bus):
            ids = bus.publish_many("x", todo, callback="answer")
            eventually(lambda: len(answers) == 599, 30)
            eventually(lambda: bus.broker.queue("q").size == 1)
            assert state(bus, ids[400], "q") == "R"
            assert [attempts(bus, message, "q") for message in ids[390:410]] == [1] * 20
        assert sorted(map(int, answers)) == [number for number in range(600) if number != 400]
        assert sorted(map(int, jobs.notes(path))) == list(range(600))

    def test_what_ended_is_settled_while_a_slow_call_goes_on(self, path: Path, tmp_path: Path) -> None:
        """B8: and what has not begun is handled by another process."""
        bus, go = Bus(), tmp_path / "go"
        todo = [{"path": str(path), "name": str(number)} for number in range(300)]
        todo[150]["until"] = str(go)
        bus.subscribe("x", queue="q", threads=2, executor="processes")(jobs.wait_if_told)
        with running(bus):
            bus.publish_many("x", todo)
            eventually(lambda: bus.broker.queue("q").size == 1, 20)
            assert len(jobs.notes(path)) == 299
            go.touch()
            eventually(lambda: bus.broker.queue("q").size == 0)

    def test_a_timeout_among_many_charges_one_message(self, path: Path) -> None:
        """B6"""
        bus = Bus()
        todo = [{"path": str(path), "name": str(number)} for number in range(300)]
        todo[200]["how"] = "sleep"
        bus.subscribe("x", queue="q", timeout="400ms", executor="processes", retry=["1h"])(jobs.reply_or_die)
        with running(bus):
            ids = bus.publish_many("x", todo)
            eventually(lambda: bus.broker.queue("q").size == 1, 30)
            eventually(lambda: state(bus, ids[200], "q") == "R")
            assert [attempts(bus, message, "q") for message in ids[190:210]] == [1] * 20
            assert bus.broker.message(ids[200]).queues[0].reason == "timed out after 400ms; its process was killed"
        assert sorted(map(int, jobs.notes(path))) == list(range(300))

    def test_a_body_that_brings_down_its_process_costs_others_of_its_list_one_attempt(self, path: Path) -> None:
        """B8"""
        bus = Bus()
        todo = [{"path": str(path), "name": name} for name in "abc"]
        todo[1]["how"] = "exit"
        bus.subscribe("x", queue="q", executor="processes", batch=5, retry=["1ms"])(jobs.many_fragile)
        ids = bus.publish_many("x", todo)
        with running(bus):
            eventually(lambda: [state(bus, message, "q") for message in ids] == ["X", "E", "X"], 20)
        assert sorted(jobs.notes(path)) == ["a", "c"]

    def test_a_process_that_dies_before_the_first_call_charges_its_first_message(self, path: Path) -> None:
        """B8, B13: so that what cannot even be read brings down only so many processes."""
        bus = Bus()
        bus.subscribe("x", queue="q", executor="processes", retry=["1ms"])(jobs.die_later)
        with running(bus):
            first = bus.publish("x", {"path": str(path), "name": "a", "at": "_work_through"})
            eventually(lambda: state(bus, first, "q") == "X", 20)
            second = bus.publish("x", {"path": str(path), "name": "b"})
            eventually(lambda: state(bus, second, "q") == "X", 20)
            assert [attempts(bus, message, "q") for message in (first, second)] == [1, 2]
        assert jobs.notes(path) == ["a", "b"]

    def test_stopping_gives_back_what_has_not_begun(self, path: Path) -> None:
        """B16"""
        bus = Bus()
        todo = [{"path": str(path), "seconds": "0.0"} for _ in range(100)]
        todo += [{"path": str(path), "seconds": "0.6"} for _ in range(20)]
        bus.subscribe("x", queue="q", executor="processes")(jobs.sleep)
        runner = bus.start()
        ids = bus.publish_many("x", todo)
        eventually(lambda: jobs.notes(path).count("began") > 100, 20)
        began = time.monotonic()
        assert runner.stop(10)
        assert time.monotonic() - began < 3
        done = [message for message in ids if state(bus, message, "q") == "X"]
        assert len(done) == jobs.notes(path).count("ended") == jobs.notes(path).count("began")
        assert bus.broker.queue("q").in_flight == 0
        bus.close()
