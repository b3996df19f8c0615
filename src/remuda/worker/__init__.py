"""The task worker: takes tasks from a queue of RabbitMQ, and acknowledges them once their results are safe."""

from remuda.worker.config import QueueType, WorkerConfig
from remuda.worker.factory import InvalidTask, NotNow, WorkerFactory
from remuda.worker.tasks import Result, Task, TaskAborted, TaskMessage, TaskStatus
from remuda.worker.worker import Worker

__all__ = [
    "InvalidTask",
    "NotNow",
    "QueueType",
    "Result",
    "Task",
    "TaskAborted",
    "TaskMessage",
    "TaskStatus",
    "Worker",
    "WorkerConfig",
    "WorkerFactory",
]
