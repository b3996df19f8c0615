"""W6, W7: lost connections, long tasks, stopping, and the worker's health."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import remuda
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.codec.properties import EMPTY
from remuda.amqp.errors import ConnectFailed
from remuda.model.errors import RemudaError
from remuda.worker import Task, TaskMessage, Worker, WorkerConfig
from remuda.worker.tasks import encode_task
from tests.servers.faultproxy import FaultProxy
from tests.servers.rabbitmq import RabbitNode
from tests.worker.kit import Stage, until


def problems(worker: Worker) -> dict[str, str]:
    return {part.name: part.problem for part in worker.health() if part.problem}


def ask(worker: Worker, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker.health_port}{path}", timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_health_and_metrics_over_http(quorum: Stage) -> None:
    """W6: live, ready, every part by name; on loopback."""
    with quorum.worker(lambda task: b"x", threads=2, health_port=0) as worker:
        quorum.send()
        quorum.result()
        status, body = ask(worker, "/ready")
        assert status == 200
        assert set(json.loads(body)["parts"]) == {
            "intake connection", "intake channel", "consumer", "results connection", "results channel",
            "publisher thread", "intake thread", "task 1 thread", "task 2 thread", "worker", "intake",
        }  # fmt: skip
        status, body = ask(worker, "/live")
        assert status == 200
        assert "intake thread" in json.loads(body)["parts"]
        assert ask(worker, "/other")[0] == 404
        until(lambda: b'remuda_worker_inputs_total{outcome="success"} 1.0' in ask(worker, "/metrics")[1])
        assert b'remuda_worker_up{part="intake channel"} 1.0' in ask(worker, "/metrics")[1]


@pytest.mark.faults
def test_a_lost_connection_comes_back_with_its_consumer(stage: Stage, rabbit: RabbitNode) -> None:
    """W6: running tasks are told to abort, health names what is down, and work goes on afterwards."""
    aborted, running = threading.Event(), threading.Event()

    def handle(task: Task) -> bytes:
        running.set()
        if task.id == "long" and task.retries == 0:
            assert task.wait(60)
            aborted.set()
            task.check()
        return b"done"

    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = f"amqp://127.0.0.1:{proxy.port}/?connect_timeout=20s"
        with stage.worker(handle, url=url, health_port=0) as worker:
            stage.send("long")
            assert running.wait(60)
            proxy.refuse = True
            proxy.cut()
            assert aborted.wait(60)
            down = until(lambda: problems(worker))
            assert {"intake connection", "results connection", "intake channel", "results channel"} & set(down)
            assert ask(worker, "/ready")[0] == 503
            assert ask(worker, "/live")[0] == 200
            proxy.refuse = False
            result = stage.result()
            assert (result.task_id, result.task_data) == ("long", b"done")
            until(lambda: not problems(worker))
            stage.send("next")
            assert stage.result().task_id == "next"
    assert stage.count(stage.input) == 0


@pytest.mark.faults
def test_giving_up_after_the_attempts(quorum: Stage, rabbit: RabbitNode) -> None:
    """W6: the worker ends with the cause."""
    with FaultProxy("127.0.0.1", rabbit.port) as proxy:
        url = f"amqp://127.0.0.1:{proxy.port}/?connect_timeout=20s"
        worker = Worker(quorum.config(url=url, attempts=3), lambda task: b"x")
        worker.start()
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(ConnectFailed, match="within 3 attempts"):
            worker.run()
        worker.stop()


@pytest.mark.faults
def test_only_the_results_connection_is_lost(quorum: Stage, rabbit: RabbitNode) -> None:
    """W2: a result that was not confirmed is sent again; the input is not returned for it."""
    calls = []

    def handle(task: Task) -> bytes:
        calls.append(task.id)
        if len(calls) == 1:
            worker._results.give_up("testing")
            until(lambda: worker._results.connects == 2)
        return b"x"

    with quorum.worker(handle) as worker:
        quorum.send("one")
        assert quorum.result().task_id == "one"
        until(lambda: worker.counts.outcomes == {"success": 1})
    assert calls == ["one"]


@pytest.mark.faults
def test_the_input_queue_is_deleted(quorum: Stage) -> None:
    """W6: the queue is made again and consumed again."""
    with quorum.worker(lambda task: b"x") as worker:
        quorum.send("one")
        quorum.result()
        quorum.channel.delete_queue(quorum.input)
        until(lambda: worker._consumer is not None and worker._consumer.ended is None and not problems(worker))
        until(lambda: _exists(quorum))
        quorum.send("two")
        assert quorum.result().task_id == "two"


def _exists(stage: Stage) -> bool:
    try:
        return stage.channel.declare_queue(stage.input, passive=True).consumer_count > 0
    except Exception:
        return False


@pytest.mark.faults
def test_long_handlers_never_miss_heartbeats(quorum: Stage) -> None:
    """W7: a task of several heartbeats, busy in Python all the while."""

    def handle(task: Task) -> bytes:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            pass
        return b"done"

    with quorum.worker(handle, url=f"{quorum.url}?heartbeat=2s") as worker:
        quorum.send()
        assert quorum.result().task_data == b"done"
        assert (worker._intake.connects, worker._results.connects) == (1, 1)


def test_a_graceful_stop_finishes_accepted_tasks(stage: Stage) -> None:
    """W7: what was taken in is answered; what was not stays in the queue, uncounted."""
    begun = threading.Event()

    def handle(task: Task) -> bytes:
        begun.set()
        time.sleep(0.2)
        return b"x"

    worker = Worker(stage.config(prefetch_buffer=4), handle)
    worker.start()
    for number in range(10):
        stage.send(f"t{number}")
    assert begun.wait(60)
    until(lambda: len(worker.inputs) == 5)
    worker.stop()
    done = stage.count(stage.output)
    assert done >= 5
    assert stage.count(stage.input) == 10 - done
    with stage.worker(lambda task: str(task.retries)):
        results = [stage.result() for _ in range(10)]
    assert {result.task_id for result in results} == {f"t{number}" for number in range(10)}
    assert [result.task_data for result in results][done:] == [b"0"] * (10 - done)


def test_after_the_grace_the_rest_goes_back_uncounted(stage: Stage) -> None:
    """W7: a task that ignores the stop is redelivered; those not begun go back as they came."""
    begun, release = threading.Event(), threading.Event()

    def handle(task: Task) -> bytes:
        begun.set()
        release.wait(60)
        return b"too late"

    worker = Worker(stage.config(prefetch_buffer=10), handle)
    worker.start()
    for number in range(4):
        stage.send(f"t{number}", headers={"own": number})
    assert begun.wait(60)
    until(lambda: len(worker.inputs) == 4)
    worker.stop(0.2)
    release.set()
    with stage.worker(lambda task: f"{task.retries} {task.headers['own']}"):
        found = {result.task_id: result.task_data for result in (stage.result() for _ in range(4))}
    assert found == {"t0": b"1 0", "t1": b"0 1", "t2": b"0 2", "t3": b"0 3"}


APP = """
import os, time
from remuda.worker import Worker, WorkerConfig

def handle(task):
    with open("starts", "a") as file:
        file.write(f"{task.id} {task.retries}\\n")
    if task.id == "poison":
        os.kill(os.getpid(), 9)
    time.sleep(float(os.environ.get("HOLD", "0")))
    return task.data.upper()
"""


def start(folder: Path, stage: Stage, **environment: str) -> subprocess.Popen[str]:
    (folder / "app.py").write_text(APP)
    variables = {
        "URL": stage.url, "INPUT_QUEUE": stage.input, "OUTPUT_QUEUE": stage.output, "QUEUE_TYPE": str(stage.kind),
        "RETRY_LIMIT": "2",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "remuda.cli", "worker", "app:handle"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(remuda.__file__).parent.parent),
            **{f"REMUDA_WORKER_{name}": value for name, value in variables.items()},
            **environment,
        },
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.faults
def test_workers_killed_by_a_poisonous_task(stage: Stage, tmp_path: Path) -> None:
    """W3: the task that kills its process is tried limit + 1 times, then answered for; all others are done."""
    stage.declare()
    for number in range(10):
        stage.send(f"t{number}", b"x")
    stage.send("poison")
    deaths = 0
    process = start(tmp_path, stage)
    found: dict[str, str] = {}
    try:
        deadline = time.monotonic() + 150
        while len(found) < 11 and time.monotonic() < deadline:
            if process.poll() is not None:
                assert process.returncode == -9
                deaths += 1
                process.communicate()
                process = start(tmp_path, stage)
            delivery = stage.channel.get(stage.output)
            if delivery is None:
                time.sleep(0.05)
                continue
            stage.channel.ack([delivery])
            result = json.loads(delivery.body)
            found[result["taskId"]] = result["taskStatus"]
    finally:
        process.kill()
        process.communicate()
    assert found == {**{f"t{number}": "RESULT_SUCCESS" for number in range(10)}, "poison": "RESULT_EXCEPTION"}
    starts = (tmp_path / "starts").read_text().splitlines()
    assert [line for line in starts if line.startswith("poison")] == ["poison 0", "poison 1", "poison 2"]
    assert deaths == 3


def test_the_command_stops_in_order(quorum: Stage, tmp_path: Path) -> None:
    """W7: SIGTERM finishes what is in hand and exits with 0."""
    quorum.declare()
    process = start(tmp_path, quorum, HOLD="0.5")
    try:
        quorum.send("one", b"data")
        until(lambda: (tmp_path / "starts").exists())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=100)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, said
    assert quorum.result().task_data == b"DATA"


def test_the_command_says_what_is_wrong(tmp_path: Path, quorum: Stage) -> None:
    """W1: one line and exit code 1."""
    process = start(tmp_path, quorum, REMUDA_WORKER_RETRY_LIMIT="0")
    _, said = process.communicate(timeout=100)
    assert process.returncode == 1
    assert said == "error: REMUDA_WORKER_RETRY_LIMIT: retry_limit must be at least 1, not '0'\n"


@pytest.mark.faults
def test_the_broker_restarts_in_mid_load(quorum: Stage, rabbit: RabbitNode) -> None:
    """W6: nothing accepted is lost; doubles only where the answer was under way."""
    total = 1000
    body = [encode_task(TaskMessage(task_id=f"t{number}", task_data=b"x")) for number in range(total)]
    with quorum.worker(lambda task: b"y", threads=2, prefetch_buffer=50, attempts=100, retry_limit=50) as worker:
        half = [Outgoing("", quorum.input, EMPTY, one) for one in body[: total // 2]]
        quorum.channel.publish_many(half, mandatory=True).wait(60)
        until(lambda: worker.counts.started > 50)
        rabbit.stop()
        assert until(lambda: problems(worker))
        rabbit.start()
        rest = [Outgoing("", quorum.input, EMPTY, one) for one in body[total // 2 :]]
        quorum.channel.publish_many(rest, mandatory=True, timeout=60).wait(60)
        consumer = quorum.channel.consume(quorum.output)
        seen: list[str] = []
        while len(set(seen)) < total:
            batch = consumer.get(1000, 60)
            assert batch, f"{len(set(seen))} of {total}; {worker.counts.outcomes}; {problems(worker)}"
            seen += [json.loads(delivery.body)["taskId"] for delivery in batch]
            consumer.ack(batch)
        until(lambda: not problems(worker))
    assert len(seen) - total <= 2 * worker.config.prefetch


def test_a_worker_that_waits_for_its_broker_can_be_stopped(tmp_path: Path, quorum: Stage) -> None:
    """W7: SIGTERM ends it at once, not after the last attempt to connect."""
    process = start(tmp_path, quorum, REMUDA_WORKER_URL="amqp://127.0.0.1:1/", REMUDA_WORKER_ATTEMPTS="100000")
    lines = threading.Event()

    def look() -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                if "trying again" in line:
                    lines.set()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        assert lines.wait(100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()
        looking.join()


def test_who_starts_a_worker_that_is_stopped_meanwhile_is_told() -> None:
    """W7: from another thread; and it cannot be stopped halfway."""
    worker = Worker(WorkerConfig(url="amqp://127.0.0.1:1/", input_queue="in", attempts=100_000), lambda task: b"")
    failures: list[RemudaError] = []

    def begin() -> None:
        try:
            worker.start()
        except RemudaError as error:
            failures.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    until(lambda: worker._intake.last_error)
    worker.stop()
    thread.join(100)
    assert not thread.is_alive()
    assert len(failures) == 1


def test_a_stop_while_the_worker_begins_ends_it(quorum: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """W7: it is connected, and its threads are not there yet."""
    worker = Worker(quorum.config(), lambda task: b"")
    declare = worker._declare

    def stopped(channel: Channel) -> None:
        declare(channel)
        worker.stop()

    monkeypatch.setattr(worker, "_declare", stopped)
    worker.start()
    worker.run()
    assert worker.stopping
    assert worker.failure is None
