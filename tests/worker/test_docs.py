"""The example, and the snippet of the page that needs a broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import remuda
from remuda.amqp.client.connection import Connection
from remuda.worker import TaskMessage
from remuda.worker.tasks import encode_task, parse_task

ROOT = Path(__file__).resolve().parents[2]


def environment(url: str) -> dict[str, str]:
    source = Path(remuda.__file__).parent.parent
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "REMUDA_WORKER_URL": url}


def test_the_example(broker_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "examples/worker.py"],
        cwd=ROOT, env=environment(broker_url), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {
        'early RESULT_SUCCESS {"words": 4}',
        'late RESULT_SUCCESS {"words": 5}',
        "other INVALID_TASK Translate is not a task for this worker",
    }


def test_the_pages_first_snippet(broker_url: str, tmp_path: Path) -> None:
    """Run by the command that stands below it."""
    block = re.search(r"```python no-run\n(.*?)```", (ROOT / "docs/worker.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "app.py").write_text(block[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "remuda.cli", "worker", "app:worker"], cwd=tmp_path, env=environment(broker_url)
    )
    try:
        with Connection(broker_url) as connection:
            channel = connection.channel(confirms=True)
            for name in ("tasks", "results"):
                channel.declare_queue(name, arguments={"x-queue-type": "quorum"})
            task = encode_task(TaskMessage(task_id="t", task_data=b"hello"))
            channel.publish("", "tasks", task, mandatory=True).wait(60)
            (delivery,) = channel.consume("results").get(1, 60)
            assert parse_task(delivery.body).task_data == b"HELLO"
            channel.ack([delivery])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
