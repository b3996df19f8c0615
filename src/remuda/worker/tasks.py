"""Tasks and results: as CAF workers write them on the wire, and as a plug-in sees them."""

from __future__ import annotations

import threading
import uuid
from enum import StrEnum
from typing import Any, Final

import msgspec

from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.values.texts import shown

VERSION: Final = 3


class TaskStatus(StrEnum):
    """Whether a message is a new task or a result, and of which kind."""

    NEW_TASK = "NEW_TASK"
    RESULT_SUCCESS = "RESULT_SUCCESS"
    RESULT_FAILURE = "RESULT_FAILURE"
    RESULT_EXCEPTION = "RESULT_EXCEPTION"
    INVALID_TASK = "INVALID_TASK"


class SourceInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Which worker a message came from."""

    name: str = ""
    version: str = ""


class TaskMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A task or a result as JSON, with the field names that CAF workers use."""

    version: int = VERSION
    task_id: str
    task_classifier: str = ""
    task_api_version: int = 1
    task_data: bytes | None = None
    task_status: TaskStatus = TaskStatus.NEW_TASK
    context: dict[str, bytes | None] | None = None
    to: str | None = None
    tracking: Any = None
    source_info: SourceInfo | None = None
    priority: int | None = None
    correlation_id: str | None = None


_DECODER: Final = msgspec.json.Decoder(TaskMessage)
_ENCODER: Final = msgspec.json.Encoder()


class InvalidTaskMessage(RemudaError, ValueError):
    """The body is not a task message."""


def parse_task(body: bytes) -> TaskMessage:
    """The task message in a body; anything else raises `InvalidTaskMessage` with the reason."""
    try:
        message = _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidTaskMessage(f"not a task message: {error}") from None
    if not message.task_id:
        raise InvalidTaskMessage("not a task message: taskId is empty")
    return message


def encode_task(message: TaskMessage) -> bytes:
    return _ENCODER.encode(message)


def new_task_id() -> str:
    return str(uuid.uuid4())


class TaskAborted(RemudaError):
    """The task's message went back to the broker, which delivers it again; results of this run would be dropped."""


class Task:
    """A task as a plug-in sees it. A long task should check `aborted` now and then, or call `check()`."""

    def __init__(self, message: TaskMessage, *, retries: int, headers: dict[str, Any]) -> None:
        self.message = message
        self.retries = retries
        """How often the broker delivered this task before."""
        self.headers = headers
        """The message's AMQP headers."""
        self._abort = threading.Event()

    @property
    def id(self) -> str:
        return self.message.task_id

    @property
    def classifier(self) -> str:
        return self.message.task_classifier

    @property
    def api_version(self) -> int:
        return self.message.task_api_version

    @property
    def data(self) -> bytes:
        return self.message.task_data or b""

    @property
    def context(self) -> dict[str, bytes | None]:
        return dict(self.message.context or {})

    @property
    def aborted(self) -> bool:
        """Whether the broker has taken the task back, so that continuing is pointless."""
        return self._abort.is_set()

    def check(self) -> None:
        """Raise `TaskAborted` if continuing is pointless."""
        if self._abort.is_set():
            raise TaskAborted(f"task {self.id} went back to the broker")

    def wait(self, seconds: float) -> bool:
        """Sleep until the time is over or the task is aborted; returns whether it was aborted."""
        return self._abort.wait(seconds)

    def abort(self) -> None:
        self._abort.set()

    def __repr__(self) -> str:
        return f"Task({self.id!r}, {self.classifier!r}, retries={self.retries})"


def _is_context(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(entry, bytes | None) for key, entry in value.items()
    )


class Result(msgspec.Struct, frozen=True):
    """One result of a task. It goes to the output queue unless it names another queue, which must exist."""

    data: bytes = b""
    status: TaskStatus = TaskStatus.RESULT_SUCCESS
    queue: str | None = None
    classifier: str | None = None
    api_version: int | None = None
    context: dict[str, bytes | None] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.data, str):
            msgspec.structs.force_setattr(self, "data", self.data.encode())
        elif not isinstance(self.data, bytes):
            raise InvalidOption(f"the data of a result must be bytes or a string, not a {type(self.data).__name__}")
        if not isinstance(self.status, TaskStatus) or (self.status is TaskStatus.NEW_TASK and self.queue is None):
            raise InvalidOption(f"the status of a result must be a result's TaskStatus, not {self.status!r}")
        if self.queue is not None and not (isinstance(self.queue, str) and 0 < len(self.queue.encode()) < 256):
            raise InvalidOption(f"the queue of a result must be a string of 1 to 255 bytes, not {self.queue!r}")
        if self.classifier is not None and not isinstance(self.classifier, str):
            raise InvalidOption(f"the classifier of a result must be a string, not {shown(self.classifier)}")
        if self.api_version is not None and type(self.api_version) is not int:
            raise InvalidOption(f"the api_version of a result must be a whole number, not {shown(self.api_version)}")
        if self.context is not None and not _is_context(self.context):
            raise InvalidOption(
                f"the context of a result must be a mapping of strings to bytes or None, not {shown(self.context)}"
            )

    @classmethod
    def failure(cls, data: bytes | str, **more: Any) -> Result:
        """A result that says the task ran but did not succeed."""
        return cls(data if isinstance(data, bytes) else data.encode(), TaskStatus.RESULT_FAILURE, **more)

    def message(self, task: TaskMessage, source: SourceInfo) -> TaskMessage:
        """The result as a message to send."""
        return TaskMessage(
            task_id=task.task_id,
            task_classifier=task.task_classifier if self.classifier is None else self.classifier,
            task_api_version=task.task_api_version if self.api_version is None else self.api_version,
            task_data=self.data,
            task_status=self.status,
            context=task.context if self.context is None else self.context,
            to=self.queue,
            tracking=task.tracking,
            source_info=source,
            priority=task.priority,
            correlation_id=task.correlation_id,
        )
