"""W3, W4: redelivered, hostile and unparseable messages."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.amqp.codec.tables import Float32, Int16, Int64, RawText, Scaled, Timestamp, UInt8
from remuda.worker import QueueType, Task, TaskStatus
from remuda.worker.tasks import parse_task
from tests.worker.kit import Stage, until


def retries(task: Task) -> str:
    return str(task.retries)


def test_a_redelivered_message_counts(stage: Stage) -> None:
    """W3: classic queues by stamp and republish, quorum queues by the broker's own count."""
    stage.declare()
    stage.send(headers={"own": "header"})
    assert stage.crash_consumer().redelivered is False
    with stage.worker(retries) as worker:
        assert stage.result().task_data == b"1"
        until(lambda: worker.counts.outcomes.get("success") == 1)
        assert worker.counts.outcomes.get("retried", 0) == (1 if stage.kind is QueueType.CLASSIC else 0)


@pytest.mark.parametrize("limit", [1, 3])
def test_the_limit(stage: Stage, limit: int) -> None:
    """W3: the handler starts at most limit + 1 times; then an error response and the mark."""
    starts: list[int] = []

    def lose(task: Task) -> bytes:
        starts.append(task.retries)
        (held,) = (held for held in worker.inputs.all() if held.task is task)
        assert held.give_back()  # as if this worker had died
        return b"from the dead"

    stage.declare(stage.input, stage.output, stage.rejected)
    with stage.worker(lose, retry_limit=limit, rejected_queue=stage.rejected) as worker:
        stage.send("poison", headers={"own": "header"}, correlation_id="c1")
        response = stage.take(stage.output)
        while parse_task(response.body).task_status is TaskStatus.RESULT_SUCCESS:
            response = stage.take(stage.output)
        original = stage.take(stage.rejected)
    assert starts == list(range(limit + 1))
    message = parse_task(response.body)
    assert (message.task_id, message.task_status) == ("poison", TaskStatus.RESULT_EXCEPTION)
    assert (message.task_data or b"").startswith(b"RETRIES_EXCEEDED")
    assert response.header("x-caf-worker-rejected") == "RETRIES_EXCEEDED"
    assert original.header("x-caf-worker-rejected") == "RETRIES_EXCEEDED"
    assert original.header("own") == "header"
    assert original.properties.correlation_id == "c1"
    assert stage.count(stage.input) == 0


def test_at_the_limit_without_any_output(classic: Stage) -> None:
    """W3: where neither output nor rejected queue is named, the message is kept beside its queue."""
    classic.declare(classic.input)
    classic.send("poison", headers={"x-caf-worker-retry": 2})
    classic.crash_consumer()
    with classic.worker(retries, output_queue=""):
        kept = classic.take(f"{classic.input}.rejected")
    assert kept.header("x-caf-worker-rejected") == "RETRIES_EXCEEDED"


@pytest.mark.parametrize("name", ["x-caf-worker-retry-limit", "x-caf-worker-retry-lmit"])
@pytest.mark.parametrize(("limit", "rejected"), [(1, True), (5, False), ("1", True), ("5", False)])
def test_the_messages_own_limit(classic: Stage, name: str, limit: Any, rejected: bool) -> None:
    """W3: in the right spelling and in the other."""
    classic.declare()
    classic.send(headers={"x-caf-worker-retry": 1, name: limit})
    classic.crash_consumer()
    with classic.worker(retries, retry_limit=3):
        answer = classic.take()
    assert answer.header("x-caf-worker-rejected") == ("RETRIES_EXCEEDED" if rejected else None)
    if not rejected:
        assert parse_task(answer.body).task_data == b"2"


def test_the_right_spelling_wins(classic: Stage) -> None:
    classic.declare()
    classic.send(headers={"x-caf-worker-retry": 1, "x-caf-worker-retry-lmit": 1, "x-caf-worker-retry-limit": 9})
    classic.crash_consumer()
    with classic.worker(retries):
        assert classic.result().task_data == b"2"


def test_a_retry_queue_of_its_own(stage: Stage) -> None:
    """W3: redelivered messages go there, with the count, and a second worker takes them from it."""
    retry = f"{stage.input}-retry"
    stage.declare()
    stage.send("t1", b"data", headers={"own": ["kept", {"deep": 1}]}, app_id="me")
    stage.crash_consumer()
    with stage.worker(retries, retry_queue=retry):
        moved = stage.take(retry)
    assert moved.header("x-caf-worker-retry") == 1
    assert moved.header("own") == ["kept", {"deep": 1}]
    assert not moved.header("x-delivery-count")
    assert moved.properties.app_id == "me"


HOSTILE: list[Any] = [
    "garbage", "", "-1", "1e9", "٣", -5, True, None, b"\xff", RawText(b"\xff\xfe"), 1.5, Float32(2.0),
    Scaled(2, 5), Timestamp(1), [1, 2], {"a": {"b": []}}, "9" * 5000, UInt8(200), Int16(-3), Int64(2**62),
]  # fmt: skip


def test_hostile_header_values_never_stop_the_consumer(stage: Stage) -> None:
    """W4: in every header that the worker reads, on fresh and on redelivered messages."""
    names = ["x-caf-worker-retry", "x-caf-worker-retry-limit", "x-caf-worker-retry-lmit", "x-caf-worker-rejected"]
    stage.declare()
    for number, value in enumerate(HOSTILE):
        stage.send(f"t{number}", headers=dict.fromkeys(names, value))
    seen = set()
    with stage.worker(retries, prefetch_buffer=50, output_queue=stage.output) as worker:
        for _ in HOSTILE:
            seen.add(stage.result().task_id)
        assert not any(part.problem for part in worker.health())
    for number, value in enumerate(HOSTILE):
        stage.send(f"r{number}", headers=dict.fromkeys(names, value))
    stage.crash_all(len(HOSTILE))
    with stage.worker(retries, prefetch_buffer=50):
        for _ in HOSTILE:
            seen.add(stage.result().task_id)
    assert seen == {f"{kind}{number}" for kind in "tr" for number in range(len(HOSTILE))}
    assert stage.count(stage.input) == 0


def test_other_headers_survive_every_republish(classic: Stage) -> None:
    """W4: byte for byte, of every type, over a retry, a refusal and a rejection."""
    from remuda.amqp.codec.properties import raw_headers
    from remuda.amqp.codec.tables import scan

    own = {f"h{number}": value for number, value in enumerate(HOSTILE)}
    retry = f"{classic.input}-retry"
    classic.declare(classic.input, classic.output, classic.rejected)
    classic.send("t1", headers=own, priority=3, expiration="600000", reply_to="r", type="t", timestamp=5)
    sent = classic.crash_consumer()
    with classic.worker(retries, retry_queue=retry):
        moved = classic.take(retry)

    def entries(raw: bytes) -> dict[bytes, bytes]:
        table = raw_headers(raw)
        return {entry.key: table[entry.start : entry.end] for entry in scan(table)}

    before, after = entries(sent.raw_properties), entries(moved.raw_properties)
    assert after.pop(b"x-caf-worker-retry").endswith(b"I\x00\x00\x00\x01")
    assert after == before
    assert len(before) == len(HOSTILE)
    assert moved.body == sent.body
    assert (moved.properties.priority, moved.properties.reply_to, moved.properties.timestamp) == (3, "r", 5)


@pytest.mark.parametrize(
    "body",
    [b"", b"garbage", b"[]", b"{}", b'{"taskId": 5}', b'{"taskId": ""}', b"\xff\xfe", b"[" * 100_000,
     b'{"taskId": "x", "taskData": "not base64!"}', b'{"taskId": "x", "taskStatus": "ODD"}'],
)  # fmt: skip
def test_unparseable_input_is_answered_once(stage: Stage, body: bytes) -> None:
    """W4: an error response to the output, marked, once; the original is in it."""
    stage.declare()
    with stage.worker(retries) as worker:
        stage.send_raw(body, headers={"own": 1})
        response = stage.take()
        stage.send("good")
        assert stage.result().task_id == "good"
        until(lambda: worker.counts.outcomes == {"rejected": 1, "success": 1})
    assert response.header("x-caf-worker-rejected") == "TASKMESSAGE_INVALID"
    message = parse_task(response.body)
    assert message.task_status is TaskStatus.INVALID_TASK
    assert (message.context or {})["original"] == body
    assert stage.count(stage.input) == stage.count(stage.output) == 0


def test_unparseable_input_and_a_rejected_queue(classic: Stage) -> None:
    """W4: the original goes there too, marked, with its own headers."""
    classic.declare(classic.input, classic.rejected)
    with classic.worker(retries, rejected_queue=classic.rejected):
        classic.send_raw(b"garbage", headers={"own": 1})
        classic.take()
        kept = classic.take(classic.rejected)
    assert (kept.body, kept.header("own"), kept.header("x-caf-worker-rejected")) == (
        b"garbage",
        1,
        "TASKMESSAGE_INVALID",
    )


def test_another_users_name_does_not_stop_the_republish(classic: Stage) -> None:
    """W4: the broker takes only our own user id, so a stranger's is not sent on."""
    classic.declare()
    classic.send("t1", user_id="guest", headers={"CC": ["elsewhere"]})
    classic.crash_consumer()
    with classic.worker(retries):
        assert classic.result().task_data == b"1"
