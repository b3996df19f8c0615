"""W8: a worker that cannot work takes nothing, and in a fleet with CAF's own workers each task finds its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from remuda.amqp.client.confirms import ConfirmTracker, Outgoing, Receipt
from remuda.worker import NotNow, Task, TaskMessage, TaskStatus, Worker, WorkerConfig, gate, jobs
from remuda.worker.tasks import encode_task, parse_task
from tests.servers.trickling import trickling_server
from tests.worker.kit import Stage, until


class Moody:
    """A worker whose health the test decides."""

    def __init__(self) -> None:
        self.sick = threading.Event()
        self.ran: list[str] = []

    def accept(self, task: Task) -> Any:
        return lambda: self.ran.append(task.id)

    def health_check(self) -> None:
        if self.sick.is_set():
            raise RuntimeError("the licence server is away")


def problems(worker: Worker) -> dict[str, str]:
    return {part.name: part.problem for part in worker.health() if part.problem}


def test_w8_a_failing_health_check_holds_the_intake_until_it_passes(quorum: Stage) -> None:
    moody = Moody()
    moody.sick.set()
    quorum.declare()
    for number in range(5):
        quorum.send(f"t{number}")
    with quorum.worker(moody) as worker:
        time.sleep(0.3)
        assert moody.ran == []
        assert quorum.count(quorum.input) == 5, "other workers can have them"
        found = problems(worker)
        assert found["worker"] == "the licence server is away"
        assert "health check fails: the licence server is away" in found["intake"]
        moody.sick.clear()
        until(lambda: len(moody.ran) == 5)
        assert problems(worker) == {}
        moody.sick.set()
        until(lambda: "intake" in problems(worker))
        time.sleep(0.2)
        quorum.send("late")
        time.sleep(0.3)
        assert "late" not in moody.ran
        moody.sick.clear()
        until(lambda: "late" in moody.ran)


def test_w8_a_health_check_that_hangs_or_exits_holds_the_intake_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "_SILENT", 0.1)
    monkeypatch.setattr(gate, "_INTERVAL", 0.0)
    hangs, exits = threading.Event(), threading.Event()

    def check() -> None:
        hangs.wait(60)
        if not exits.is_set():
            raise SystemExit("the licence ended")

    held = gate.Gate(check, 0.1)
    for _ in range(2):
        assert not held.is_open()
        assert "it has given no answer for" in held.problem
    hangs.set()
    until(lambda: held.problem == "held while the health check fails: the licence ended")
    exits.set()
    until(held.is_open)


def test_w8_a_worker_that_refuses_everything_is_asked_less_and_less_often(quorum: Stage) -> None:
    refused: list[float] = []
    willing = threading.Event()
    done: list[str] = []

    def handle(task: Task) -> None:
        if not willing.is_set():
            refused.append(time.monotonic())
            raise NotNow("no memory")
        done.append(task.id)

    quorum.declare()
    quorum.send("t1")
    with quorum.worker(handle, return_delay=0.1) as worker:
        until(lambda: "no memory" in problems(worker).get("intake", ""))
        assert "consumer" not in problems(worker)
        time.sleep(2.0)
        assert len(refused) <= 9, "without a pause it would be refused twenty times"
        willing.set()
        until(lambda: done == ["t1"])
        until(lambda: "intake" not in problems(worker))
        quorum.send("t2")
        until(lambda: done == ["t1", "t2"], 5)


def test_w8_a_task_for_another_queue_is_forwarded_untouched(stage: Stage) -> None:
    ran: list[str] = []
    other = stage.input + "-other"
    stage.declare(stage.input, stage.output, other)
    body = encode_task(TaskMessage(task_id="t1", to=other, task_data=b"x")).replace(b"{", b'{"unknown": [1, 2.50], ', 1)
    with stage.worker(lambda task: ran.append(task.id)) as worker:
        stage.send_raw(body, headers={"tenant": "a"}, priority=3, correlation_id="c")
        found = stage.take(other)
        assert found.body == body
        assert found.properties.headers is not None
        assert found.properties.headers["tenant"] == "a"
        assert (found.properties.priority, found.properties.correlation_id) == (3, "c")
        until(lambda: worker.counts.outcomes.get("forwarded") == 1)
        stage.send_raw(encode_task(TaskMessage(task_id="own", to=stage.input.upper())))
        until(lambda: ran == ["own"])


@contextmanager
def job_service(answers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """CAF's job service: what it answers for each path, and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer = answers.get(self.path)
            self.send_response(404 if answer is None else 500 if answer == "broken" else 200)
            self.end_headers()
            self.wfile.write((answer or "").encode())

        def log_message(self, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def of_job(task_id: str, url: str, **tracking: Any) -> bytes:
    return encode_task(TaskMessage(task_id=task_id, tracking={"jobTaskId": "j.1", "statusCheckUrl": url, **tracking}))


def test_w8_the_jobs_status_is_asked_before_the_work_and_cached(stage: Stage) -> None:
    ran: list[str] = []
    paused = stage.input + "-paused"
    answers = {
        "/active": '"Active"',
        "/paused": '"Paused"',
        "/cancelled": '"Cancelled"',
        "/old": "true",
        "/bad": "broken",
    }
    stage.declare(stage.input, stage.output, paused)
    with job_service(answers) as (url, asked):

        def work(task: Task) -> None:
            ran.append(task.id)

        with stage.worker(work, paused_queue=paused) as worker:
            for number in range(3):
                stage.send_raw(of_job(f"active{number}", url + "/active"))
                stage.send_raw(of_job(f"cancelled{number}", url + "/cancelled"))
            for place in ("gone", "old", "bad"):
                stage.send_raw(of_job(place, f"{url}/{place}"))
            held = of_job("held", url + "/paused")
            stage.send_raw(held, headers={"tenant": "a"})
            assert stage.take(paused).body == held
            stage.send_raw(of_job("file", "file:///etc/passwd"))
            just_asked = {"lastStatusCheckTime": int(time.time() * 1000), "statusCheckIntervalMillis": 60_000}
            stage.send_raw(of_job("fresh", url + "/cancelled", **just_asked))
            until(lambda: {"active2", "gone", "old", "bad", "file", "fresh"} <= set(ran))
            until(lambda: worker.counts.outcomes.get("inactive") == 3)
            assert not [name for name in ran if name.startswith(("cancelled", "held"))]
            assert asked.count("/active") == asked.count("/cancelled") == 1
        assert stage.count(stage.input) == 0


@pytest.mark.parametrize("beginning", [b"HTTP/1.1 200 OK\r\nSlow: ", b'HTTP/1.1 200 OK\r\n\r\n"Cancelled'])
def test_w8_a_job_service_that_answers_byte_by_byte_holds_no_task(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_TIMEOUT", 0.2)
    with trickling_server(beginning) as port:
        task = parse_task(of_job("slow", f"http://127.0.0.1:{port}/"))
        began = time.monotonic()
        assert jobs.Jobs().status(task) is jobs.JobStatus.ACTIVE
        assert time.monotonic() - began < 5


def test_w8_a_paused_jobs_task_is_worked_on_where_no_queue_is_for_it(quorum: Stage) -> None:
    """As CAF's own workers do."""
    ran: list[str] = []
    quorum.declare()
    with job_service({"/paused": "Paused"}) as (url, _), quorum.worker(lambda task: ran.append(task.id)):
        quorum.send_raw(of_job("t", url + "/paused", statusCheckIntervalMillis=0))
        until(lambda: ran == ["t"])


def test_w8_an_off_loaded_payload_is_refused_by_name(quorum: Stage) -> None:
    quorum.declare()
    with quorum.worker(lambda task: None):
        quorum.send_raw(b"", headers={"x-caf-payload-offloading-storage-ref": "store/17"})
        found = quorum.result()
    assert found.task_status is TaskStatus.INVALID_TASK
    assert found.task_data is not None
    assert b"header x-caf-payload-offloading-storage-ref" in found.task_data


def test_w8_an_error_names_the_worker_and_its_version(quorum: Stage) -> None:
    def fail(task: Task) -> None:
        raise ValueError("no such page")

    quorum.declare()
    with Worker(quorum.config(), fail, name="pages", version="2.7"):
        quorum.send()
        found = quorum.result()
    assert found.task_data == b"pages 2.7: ValueError: no such page"
    assert json.loads(encode_task(found))["sourceInfo"] == {"name": "pages", "version": "2.7"}


def test_w6_the_consumer_is_down_while_its_connection_is(quorum: Stage) -> None:
    quorum.declare()
    with quorum.worker(lambda task: None) as worker:
        until(lambda: problems(worker) == {})
        worker._intake.close()
        assert problems(worker)["consumer"] == "down with its connection"


def test_w1_a_prefetch_that_amqp_cannot_carry_is_told(quorum: Stage, caplog: pytest.LogCaptureFixture) -> None:
    quorum.declare()
    with quorum.worker(lambda task: None, prefetch_buffer=100_000):
        assert "AMQP fetches 65535 tasks at most" in caplog.text


def test_w1_a_paused_queue_is_another_queue() -> None:
    with pytest.raises(ValueError, match="paused_queue"):
        WorkerConfig(input_queue="in", paused_queue="in")


def test_w2_a_confirm_of_what_was_not_sent_is_counted_and_settles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    tracker = ConfirmTracker()
    receipt = Receipt([Outgoing("", "q", b"", b"1"), Outgoing("", "q", b"", b"2")])
    tracker.add(receipt)
    assert tracker.answer(7, multiple=True, taken=True) == []
    assert tracker.answer(3, multiple=False, taken=False) == []
    assert tracker.strays == 2
    assert "answered for message 7" in caplog.text
    assert tracker.answer(2, multiple=True, taken=True) == [receipt]
    assert not receipt.failed
