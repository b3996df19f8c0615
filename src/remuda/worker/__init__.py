"""The task worker: runs tasks from a RabbitMQ queue, and acknowledges them once their results are confirmed."""

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
