"""B8: a process works through a batch of messages, and its parent knows what became of each, also after a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from remuda import Bus
from remuda.bus.broker_api import Outcome
from remuda.bus.execution.active_delivery import DeliveryState
from remuda.bus.execution.processes import child_main as child
from remuda.bus.execution.processes.batch_tracker import BatchTracker
from remuda.bus.execution.processes.child_process import ChildProcess, ProcessCrashed
from remuda.model.messages import Messages
from tests.bus import jobs
from tests.bus.kit import attempts, eventually, running, state

SIZE = 100
Hire = Callable[..., ChildProcess]
Todo = list[dict[str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def todo(path: Path) -> Todo:
    return [{"path": str(path), "name": str(number)} for number in range(SIZE)]


@pytest.fixture
def hire() -> Iterator[Hire]:
    hired: list[ChildProcess] = []

    def start(handler: Callable[..., Any], **options: Any) -> ChildProcess:
        bus = Bus()
        bus.subscribe("x", queue="q", **options)(handler)
        processor = next(processor for processor in bus.processors() if processor.queue == "q")
        hired.append(ChildProcess(processor.dispatcher, SIZE, lambda messages: [], threading.Event()))
        bus.close()
        return hired[-1]

    yield start
    for child_process in hired:
        child_process.close()


def begin(child_process: ChildProcess, todo: Todo, headers: Mapping[str, str] | None = None) -> BatchTracker:
    bodies = [msgspec.json.encode(job) for job in todo]
    messages = Messages(bodies=bodies, name="x", mime_type="application/json", headers=headers or {})
    batch = child.CallBatch(0, messages, [1] * len(bodies), [False] * len(bodies))
    assert child_process.begin(child.BatchDelivery(batch), batch.attempts)
    return BatchTracker(child_process.shared, len(bodies))


def listen(child_process: ChildProcess, tracker: BatchTracker) -> str:
    """The next word but for outcomes, which are taken down."""
    while True:
        said = child_process.listen(60)
        assert said is not None
        if said[0] != child.TOLD:
            return said[0]
        tracker.hear(said[1])


def ended(rest: DeliveryState) -> dict[int, Outcome]:
    return {row: outcome.outcome for rows, outcome in rest.finished for row in rows}


class TestBatches:
    def test_a_crash_amid_a_hundred_is_that_of_one_call_and_loses_no_outcome(self, hire: Hire, todo: Todo) -> None:
        todo[7]["how"], todo[50]["how"] = "raise", "exit"
        child_process = hire(jobs.reply_or_die)
        tracker = begin(child_process, todo, {"cap-callback-name": "answers"})
        with pytest.raises(ProcessCrashed, match="exit code 7"):
            listen(child_process, tracker)
        rest = tracker.take()
        assert rest.running == [50]
        assert sorted(rest.waiting) == list(range(51, 100))
        expected = {row: Outcome.NACK if row == 7 else Outcome.ACK for row in range(50)}
        assert ended(rest) == expected
        replies = {rows[0]: outcome.replies[0] for rows, outcome in rest.finished if outcome.replies}
        assert {row: reply.body for row, reply in replies.items() if reply} == {
            row: b'"%d"' % row for row in range(50) if row != 7
        }

    def test_a_crash_right_after_the_last_call_is_nobodys(self, hire: Hire, todo: Todo) -> None:
        todo[-1]["at"] = "_say"
        child_process = hire(jobs.die_later)
        tracker = begin(child_process, todo)
        with pytest.raises(ProcessCrashed, match="exit code 5"):
            listen(child_process, tracker)
        rest = tracker.take()
        assert ended(rest) == dict.fromkeys(range(100), Outcome.ACK)
        assert rest.running == rest.waiting == []

    def test_a_crash_between_two_calls_is_nobodys(self, hire: Hire, todo: Todo) -> None:
        todo[50]["at"] = "begin"
        child_process = hire(jobs.die_later)
        tracker = begin(child_process, todo)
        with pytest.raises(ProcessCrashed, match="exit code 5"):
            listen(child_process, tracker)
        rest = tracker.take()
        assert sorted(ended(rest)) == list(range(51))
        assert rest.running == []
        assert sorted(rest.waiting) == list(range(51, 100))

    def test_outcomes_for_which_the_slate_has_no_room_survive_a_crash(self, hire: Hire, todo: Todo) -> None:
        for row in range(20):
            todo[row]["times"] = "5000"
        todo[20]["how"] = "exit"
        child_process = hire(jobs.reply_or_die)
        tracker = begin(child_process, todo, {"cap-callback-name": "answers"})
        with pytest.raises(ProcessCrashed):
            listen(child_process, tracker)
        rest = tracker.take()
        assert {rows[0]: len(outcome.replies) for rows, outcome in rest.finished} == dict.fromkeys(range(20), 1)
        assert rest.running == [20]

    def test_a_recall_gives_back_what_has_not_begun(self, hire: Hire, todo: Todo, path: Path) -> None:
        todo[30]["how"] = "sleep"
        child_process = hire(jobs.reply_or_die)
        tracker = begin(child_process, todo)
        eventually(lambda: len(jobs.notes(path)) == 31)
        child_process.recall()
        assert listen(child_process, tracker) == child.CLOSED
        rest = tracker.take()
        assert sorted(ended(rest)) == list(range(30))
        assert rest.running == [30]
        assert sorted(rest.waiting) == list(range(31, 100))

    def test_a_recall_that_comes_too_late_spares_the_next_round(self, hire: Hire, todo: Todo) -> None:
        child_process = hire(jobs.reply_or_die)
        for _ in range(20):
            tracker = begin(child_process, todo[:5])
            assert listen(child_process, tracker) == child.OVER
            assert len(ended(tracker.take())) == 5
            child_process.recall()

    def test_a_crash_while_a_list_is_decoded_is_an_attempt_of_all(self, hire: Hire, todo: Todo) -> None:
        """Next time each has a call of its own."""
        todo[3]["how"] = "exit"
        child_process = hire(jobs.many_fragile, batch=10)
        tracker = begin(child_process, todo[:10])
        with pytest.raises(ProcessCrashed, match="exit code 4"):
            listen(child_process, tracker)
        rest = tracker.take()
        assert rest.running == list(range(10))
        assert rest.waiting == []

    def test_messages_may_have_any_mapping_as_headers(self, hire: Hire, todo: Todo) -> None:
        child_process = hire(jobs.reply_or_die)
        tracker = begin(child_process, todo, MappingProxyType({"a": "b"}))
        assert listen(child_process, tracker) == child.OVER
        assert len(ended(tracker.take())) == 100

    def test_a_result_that_cannot_be_sent_ends_its_message(self, hire: Hire, todo: Todo) -> None:
        todo[1]["how"] = "odd"
        child_process = hire(jobs.reply_or_die)
        tracker = begin(child_process, todo[:3], {"cap-callback-name": "answers"})
        assert listen(child_process, tracker) == child.OVER
        found = ended(tracker.take())
        assert [found[row] for row in range(3)] == [Outcome.ACK, Outcome.DEAD, Outcome.ACK]

    def test_a_copy_that_is_interrupted_says_nothing(self, hire: Hire, todo: Todo, path: Path) -> None:
        child_process = hire(jobs.fork_and_interrupt)
        tracker = begin(child_process, todo[:3])
        assert listen(child_process, tracker) == child.OVER
        assert ended(tracker.take()) == dict.fromkeys(range(3), Outcome.ACK)
        assert jobs.notes(path) == ["1"] * 3


class TestPool:
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
            eventually(lambda: len(answers) == 599)
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
            eventually(lambda: bus.broker.queue("q").size == 1)
            assert len(jobs.notes(path)) == 299
            go.touch()
            eventually(lambda: bus.broker.queue("q").size == 0)

    def test_a_timeout_among_many_charges_one_message(self, path: Path) -> None:
        """B6"""
        bus = Bus()
        todo = [{"path": str(path), "name": str(number)} for number in range(300)]
        todo[200]["how"] = "sleep"
        bus.subscribe("x", queue="q", timeout="1s", executor="processes", retry=["1h"])(jobs.reply_or_die)
        with running(bus):
            ids = bus.publish_many("x", todo)
            eventually(lambda: bus.broker.queue("q").size == 1)
            eventually(lambda: state(bus, ids[200], "q") == "R")
            assert [attempts(bus, message, "q") for message in ids[190:210]] == [1] * 20
            assert bus.broker.message(ids[200]).queues[0].reason == "timed out after 1s; its process was killed"
        assert sorted(map(int, jobs.notes(path))) == list(range(300))

    def test_a_body_that_brings_down_its_process_costs_others_of_its_list_one_attempt(self, path: Path) -> None:
        """B8"""
        bus = Bus()
        todo = [{"path": str(path), "name": name} for name in "abc"]
        todo[1]["how"] = "exit"
        bus.subscribe("x", queue="q", executor="processes", batch=5, retry=["1ms"])(jobs.many_fragile)
        ids = bus.publish_many("x", todo)
        with running(bus):
            eventually(lambda: [state(bus, message, "q") for message in ids] == ["X", "E", "X"])
        assert sorted(jobs.notes(path)) == ["a", "c"]

    def test_a_process_that_dies_before_the_first_call_charges_its_first_message(self, path: Path) -> None:
        """B8, B13: so that what cannot even be read brings down only so many processes."""
        bus = Bus()
        bus.subscribe("x", queue="q", executor="processes", retry=["1ms"])(jobs.die_later)
        with running(bus):
            first = bus.publish("x", {"path": str(path), "name": "a", "at": "_work_through"})
            eventually(lambda: state(bus, first, "q") == "X")
            second = bus.publish("x", {"path": str(path), "name": "b"})
            eventually(lambda: state(bus, second, "q") == "X")
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
        eventually(lambda: jobs.notes(path).count("began") > 100)
        assert runner.stop(60)
        done = [message for message in ids if state(bus, message, "q") == "X"]
        assert len(done) == jobs.notes(path).count("ended") == jobs.notes(path).count("began")
        assert len(done) < len(todo), "it did not wait for what had not begun"
        assert bus.broker.queue("q").in_flight == 0
        bus.close()
