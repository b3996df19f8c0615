"""W2, W5: results, and when an input is acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import msgspec
import pytest

from remuda.amqp.codec.frames import FRAME_MAX
from remuda.model.errors import InvalidOption
from remuda.worker import InvalidTask, NotNow, Result, Task, TaskStatus, Worker
from remuda.worker.factory import Work
from tests.servers.faultproxy import FaultProxy
from tests.servers.rabbitmq import RabbitNode
from tests.worker.kit import Stage, until

WHO = f"remuda-worker {version('remuda')}: ".encode()
WRONG = WHO + b"InvalidOption: a worker returned a int where a Result was expected"


def test_a_result_for_each_task(stage: Stage) -> None:
    """W2: tasks come out as results, and nothing is left."""
    with stage.worker(lambda task: task.data.upper(), threads=2, prefetch_buffer=10) as worker:
        for number in range(50):
            stage.send(f"t{number}", b"data %d" % number)
        found = {(result.task_id, result.task_data) for result in (stage.result() for _ in range(50))}
        assert found == {(f"t{number}", b"DATA %d" % number) for number in range(50)}
        until(lambda: worker.counts.outcomes == {"success": 50})
    assert stage.count(stage.input) == 0


def test_what_a_plugin_can_answer(quorum: Stage) -> None:
    """W2: several results, other statuses, other queues, errors, and nothing at all."""

    def handle(task: Task) -> Result | list[Result] | str | None:
        match task.id:
            case "several":
                return [Result(b"1"), Result(b"2", queue=quorum.rejected, classifier="Other", api_version=7)]
            case "failure":
                return Result.failure("no such page")
            case "error":
                raise ValueError("broken")
            case "invalid":
                raise InvalidTask("no such field")
            case "exit":
                raise SystemExit(3)
            case "wrong":
                return [5]  # type: ignore[list-item]
        return None

    quorum.declare(quorum.rejected)
    with quorum.worker(handle) as worker:
        quorum.send("several")
        assert quorum.result().task_data == b"1"
        other = quorum.take(quorum.rejected)
        assert b'"taskClassifier":"Other","taskApiVersion":7' in other.body
        for task, status, data in (
            ("failure", TaskStatus.RESULT_FAILURE, b"no such page"),
            ("error", TaskStatus.RESULT_EXCEPTION, WHO + b"ValueError: broken"),
            ("invalid", TaskStatus.INVALID_TASK, b"no such field"),
            ("exit", TaskStatus.RESULT_EXCEPTION, WHO + b"SystemExit: 3"),
            (
                "wrong",
                TaskStatus.RESULT_EXCEPTION,
                WRONG,
            ),
        ):
            quorum.send(task)
            result = quorum.result()
            assert (result.task_id, result.task_status, result.task_data) == (task, status, data)
        quorum.send("nothing")
        until(lambda: sum(worker.counts.outcomes.values()) == 7)
    assert quorum.count(quorum.input) == quorum.count(quorum.output) == 0


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _smuggled(**changes: object) -> Result:
    """A result that came past its own checks."""
    result = Result(b"x")
    for name, value in changes.items():
        msgspec.structs.force_setattr(result, name, value)
    return result


HOSTILE: dict[str, Callable[[], object]] = {
    "no JSON": lambda: _smuggled(context={"a": object()}),
    "no UTF-8": lambda: Result(b"x", classifier="\ud800"),
    "no text": lambda: (_ for _ in ()).throw(Speechless()),
    "no reason": lambda: (_ for _ in ()).throw(InvalidTask(Speechless())),
    "number": lambda: 5,
    "mapping": lambda: {"a": Result(b"x")},
}


def test_whatever_a_plugin_answers_its_thread_goes_on(quorum: Stage) -> None:
    """W2, W6: an answer that cannot be sent is an error response, once, and nothing of the worker ends."""
    with quorum.worker(lambda task: HOSTILE[task.id]()) as worker:  # type: ignore[arg-type, return-value]
        for name in HOSTILE:
            quorum.send(name)
            result = quorum.result()
            assert result.task_id == name
            assert result.task_status in (TaskStatus.RESULT_EXCEPTION, TaskStatus.INVALID_TASK), name
        until(lambda: sum(worker.counts.outcomes.values()) == len(HOSTILE))
        assert all(not part.problem for part in worker.health())
    assert quorum.count(quorum.input) == quorum.count(quorum.output) == 0


@pytest.mark.parametrize(
    "changes",
    [{"classifier": 5}, {"api_version": "1"}, {"context": {"a": "b"}}, {"context": [1]}, {"api_version": True}],
)
def test_a_result_says_what_is_wrong_with_it(changes: dict[str, Any]) -> None:
    """W2: where it is made, with the argument's name."""
    with pytest.raises(InvalidOption, match=f"the {next(iter(changes))} of a result must be"):
        Result(b"x", **changes)


def test_a_task_may_stop_its_worker(quorum: Stage) -> None:
    """W7: it is finished like the others in hand, and its result is sent."""

    def handle(task: Task) -> bytes:
        worker.stop()
        return b"the last"

    worker = Worker(quorum.config(), handle)
    worker.start()
    quorum.send()
    worker.run()
    assert quorum.result().task_data == b"the last"
    assert quorum.count(quorum.input) == 0


def test_acknowledged_only_after_the_results_are_confirmed(quorum: Stage, rabbit: RabbitNode) -> None:
    """W2: while the broker has not confirmed, the input stays unacknowledged."""
    silent = threading.Event()
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:

        def handle(task: Task) -> bytes:
            proxy.silent = True
            silent.set()
            return b"done"

        with quorum.worker(handle, url=f"amqp://127.0.0.1:{proxy.port}/") as worker:
            quorum.send()
            assert silent.wait(60)
            time.sleep(0.3)
            assert (worker.counts.outcomes, len(worker.inputs)) == ({}, 1)
            proxy.silent = False
            assert quorum.result().task_data == b"done"
            until(lambda: worker.counts.outcomes == {"success": 1} and not len(worker.inputs))


@pytest.mark.parametrize("results", [1, 3])
def test_a_refused_result_returns_the_input_exactly_once(
    stage: Stage, results: int, caplog: pytest.LogCaptureFixture
) -> None:
    """W2: the results go to a queue that does not exist, then to one that does."""
    calls = []

    def handle(task: Task) -> list[Result]:
        calls.append(task.retries)
        if len(calls) == 1:
            return [Result(b"x", queue="there is no such queue")] * results
        return [Result(b"y")]

    with stage.worker(handle) as worker:
        stage.send()
        assert stage.result().task_data == b"y"
        until(lambda: worker.counts.outcomes.get("success") == 1)
        assert worker.counts.outcomes["returned"] == 1
        assert calls == [0, 1]
    assert stage.count(stage.input) == 0
    assert "what was sent to queue there is no such queue was not accepted (312 NO_ROUTE)" in caplog.text


def test_a_queue_that_takes_no_more(classic: Stage) -> None:
    """W2: a full output queue nacks; the task is done again until its limit, then rejected, and nothing is lost."""
    arguments = {"x-queue-type": "classic", "x-max-length": 0, "x-overflow": "reject-publish"}
    classic.channel.declare_queue("full-queue", arguments=arguments)
    starts = []

    def handle(task: Task) -> Result:
        starts.append(task.retries)
        return Result(b"x", queue="full-queue")

    with classic.worker(handle, retry_limit=2):
        classic.send()
        result = classic.result()
    assert result.task_status is TaskStatus.RESULT_EXCEPTION
    assert starts == [0, 1, 2]


def test_a_result_that_cannot_be_sent(quorum: Stage) -> None:
    """W2: it costs its own task only."""

    def handle(task: Task) -> Result:
        return Result(b"fine", queue=quorum.output if task.id == "good" else "no such queue " + "x" * 200)

    with quorum.worker(handle, retry_limit=1):
        quorum.send("bad")
        quorum.send("good")
        found = {quorum.result().task_id for _ in range(2)}
    assert found == {"bad", "good"}


def test_a_large_result(quorum: Stage) -> None:
    with quorum.worker(lambda task: b"x" * (3 * FRAME_MAX)):
        quorum.send()
        assert len(quorum.result().task_data or b"") == 3 * FRAME_MAX


class Shy:
    """A worker that refuses at registration for a while."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.retries: list[int] = []

    def accept(self, task: Task) -> Work:
        self.retries.append(task.retries)
        if len(self.retries) <= self.refusals:
            raise NotNow("busy")
        return lambda: b"done"

    def health_check(self) -> None:
        pass


def test_not_now_does_not_count(stage: Stage) -> None:
    """W5: refused more often than the limit allows retries, and still done in the end, with its headers."""
    shy = Shy(refusals=6)
    with stage.worker(shy, retry_limit=2) as worker:
        stage.send(headers={"own": "header"}, message_id="m1")
        assert stage.result().task_data == b"done"
        until(lambda: worker.counts.outcomes.get("success") == 1)
        assert worker.counts.outcomes["not-now"] >= 6
    assert shy.retries == [0] * 7


def test_not_now_keeps_the_count(classic: Stage) -> None:
    """W5: a message that was retried before stays at its count."""
    shy = Shy(refusals=2)
    with classic.worker(shy):
        classic.send(headers={"x-caf-worker-retry": 1})
        classic.result()
    assert shy.retries == [1, 1, 1]


@pytest.mark.parametrize("data", [5, None, ["x"]])
def test_results_are_checked(data: object) -> None:
    with pytest.raises(ValueError, match="the data of a result must be bytes or a string"):
        Result(data)  # type: ignore[arg-type]


def test_the_worker_is_a_context(quorum: Stage) -> None:
    with Worker(quorum.config(), lambda task: b"x") as worker:
        quorum.send()
        quorum.result()
    assert not worker.inputs.all()
