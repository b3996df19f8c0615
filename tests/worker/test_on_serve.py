"""W2, W3, W5, S2: the task worker on `remuda serve`, as on RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remuda import open_broker
from remuda.amqp.client.connection import Connection
from remuda.worker import NotNow, QueueType, Task, TaskStatus
from tests.servers.amqpd import RunningServer
from tests.worker.kit import Stage


@pytest.fixture(params=list(QueueType))
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with open_broker("memory://") as broker, RunningServer(broker=broker) as server, Connection(server.url) as peer:
        yield Stage(server.url, peer.channel(confirms=True), request.param)


def test_w3_a_task_is_retried_refused_and_answered(stage: Stage) -> None:
    ran: list[tuple[str, int]] = []

    def handle(task: Task) -> bytes:
        ran.append((task.id, task.retries))
        if len(ran) == 1:
            raise NotNow("busy")
        return task.data.upper()

    stage.declare()
    stage.send("t1", b"data")
    stage.crash_consumer()
    with stage.worker(handle):
        found = stage.result()
        stage.send_raw(b"no task")
        refused = stage.result()
    assert (found.task_id, found.task_data) == ("t1", b"DATA")
    assert ran == [("t1", 1), ("t1", 1)], "the crash counts, the refusal does not"
    assert refused.task_status is TaskStatus.INVALID_TASK
    assert stage.count(stage.input) == 0
