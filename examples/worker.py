"""A task worker on RabbitMQ. Set REMUDA_WORKER_URL if yours is not on this machine; run it with

python examples/worker.py                      # sends three tasks, runs them, and shows the results
remuda worker examples.worker:worker           # runs until Ctrl-C
"""

import json
import time

from remuda.amqp.client.connection import Connection
from remuda.worker import InvalidTask, NotNow, Result, Task, TaskMessage, Worker, WorkerConfig
from remuda.worker.factory import Work
from remuda.worker.tasks import encode_task, parse_task


class WordCounter:
    """Counts words; refuses the task `late` during its first second."""

    def __init__(self) -> None:
        self._opens = time.monotonic() + 1

    def accept(self, task: Task) -> Work:
        if task.classifier != "WordCount":
            raise InvalidTask(f"{task.classifier} is not a task for this worker")
        if task.id == "late" and time.monotonic() < self._opens:
            raise NotNow("still warming up")
        return lambda: Result(json.dumps({"words": len(task.data.split())}).encode())

    def health_check(self) -> None:
        pass


config = WorkerConfig.load(input_queue="example-tasks", output_queue="example-results", threads=2, grace="5s")
worker = Worker(config, WordCounter())


def main() -> None:
    with Connection(config.url) as connection, worker:
        channel = connection.channel(confirms=True)
        for name, kind, text in (
            ("early", "WordCount", b"the mail never stops"),
            ("late", "WordCount", b"a herd of fresh horses"),
            ("other", "Translate", b"bonjour"),
        ):
            task = TaskMessage(task_id=name, task_classifier=kind, task_data=text)
            channel.publish("", config.input_queue, encode_task(task), mandatory=True).wait(10)
        results = channel.consume(config.output_queue)
        seen = 0
        while seen < 3 and (deliveries := results.get(timeout=20)):
            for delivery in deliveries:
                result = parse_task(delivery.body)
                print(result.task_id, result.task_status, (result.task_data or b"").decode())
            seen += results.ack(deliveries)


if __name__ == "__main__":
    main()
