"""Other languages' workers on the same queues: messages from node's amqplib, as a CAF worker writes them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from remuda.worker import Result, Task
from tests.worker.kit import Stage

TASK = {
    "version": 3,
    "taskId": "J42.1",
    "taskClassifier": "DocumentWorker",
    "taskApiVersion": 1,
    "taskData": "eyJkb2N1bWVudCI6IH19",
    "taskStatus": "NEW_TASK",
    "context": {"/workers/document": "c3RhdGU="},
    "to": "document-in",
    "tracking": {"jobTaskId": "J42.1", "statusCheckIntervalMillis": 120000, "trackTo": "jobtracking-in"},
    "sourceInfo": {"name": "worker-extract", "version": "3.1.0"},
    "priority": 2,
    "correlationId": "c-1",
}
"""A task message of a Java CAF worker; `taskData` and the values of `context` are base64."""

SCRIPT = """
const amqp = require("amqplib");
(async () => {
  const [url, input, output, body, headers] = process.argv.slice(2);
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  const options = { persistent: true, headers: JSON.parse(headers), contentType: "application/json", priority: 2 };
  await channel.sendToQueue(input, Buffer.from(body), options);
  await channel.waitForConfirms();
  for (;;) {
    const message = await channel.get(output, { noAck: true });
    if (message) {
      console.log(JSON.stringify({ body: message.content.toString(), properties: message.properties }));
      break;
    }
    await new Promise((done) => setTimeout(done, 50));
  }
  await connection.close();
})();
"""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with node's amqplib in it."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed, so amqplib was not tried")
    folder = tmp_path_factory.mktemp("node")
    (folder / "script.js").write_text(SCRIPT)
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "amqplib@^0.10"],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"amqplib could not be installed: {done.stderr[-300:]}")
    return folder


def exchange(node: Path, stage: Stage, body: str, headers: dict[str, Any]) -> dict[str, Any]:
    """Publish by amqplib, and the answer as amqplib reads it."""
    done = subprocess.run(
        ["node", "script.js", stage.url, stage.input, stage.output, body, json.dumps(headers)],
        cwd=node, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def handle(task: Task) -> Result:
    return Result(task.data + f" {task.retries} {sorted(task.headers)}".encode())


def test_a_task_from_amqplib(stage: Stage, node: Path) -> None:
    """Everything of the message that is not the worker's own comes back in the result."""
    with stage.worker(handle):
        answer = exchange(node, stage, json.dumps({**TASK, "to": stage.input}), {"own": 1, "x-caf-worker-retry": 1})
    result = json.loads(answer["body"])
    assert set(result) == set(TASK)
    for name in ("version", "taskId", "taskClassifier", "taskApiVersion", "context", "tracking", "correlationId"):
        assert result[name] == TASK[name]
    assert (result["taskStatus"], result["priority"]) == ("RESULT_SUCCESS", 2)
    assert (answer["properties"]["deliveryMode"], answer["properties"]["priority"]) == (2, 2)
    assert answer["properties"]["contentType"] == "application/json"


def test_an_unparseable_message_from_amqplib(classic: Stage, node: Path) -> None:
    """The mark is a text, as Java and node read it."""
    with classic.worker(handle):
        answer = exchange(node, classic, "no task", {})
    assert answer["properties"]["headers"] == {"x-caf-worker-rejected": "TASKMESSAGE_INVALID"}
    assert json.loads(answer["body"])["taskStatus"] == "INVALID_TASK"
