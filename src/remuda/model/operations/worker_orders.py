"""What a process that runs handlers tells of itself, and what it may be told to do."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from remuda.model.errors import InvalidOption

INTERVAL: Final = 2.0
"""Seconds between two signs of a worker."""
LISTED: Final = 200
"""How many running calls a worker tells of at most."""
_QUEUES: Final = 10_000
_LONGEST: Final = 2000


class Intake(StrEnum):
    """Whether a worker takes messages."""

    OPEN = "open"
    PAUSED = "paused"
    STOPPING = "stopping"
    """It finishes what it has begun, and ends."""


class WorkerOrder(StrEnum):
    """What an operator tells a worker to do."""

    PAUSE = "pause"
    """Take no more messages; what has begun goes on."""
    RESUME = "resume"
    STOP = "stop"
    """End as on SIGTERM."""


class Cancellation(msgspec.Struct, frozen=True):
    """A message that is being handled is to be cancelled."""

    queue: str
    offset: int
    who: str


class Orders(msgspec.Struct, frozen=True):
    """The answer to a worker's sign: what it shall do."""

    order: WorkerOrder | None = None
    cancel: tuple[Cancellation, ...] = ()
    """Messages of its queues that it shall cancel if it handles them. Each is told to it once."""


class Progress(msgspec.Struct, frozen=True, rename="camel"):
    """How far a handler has come, by its own account."""

    done: float
    total: float | None = None
    note: str = ""


class RunningCall(msgspec.Struct, frozen=True, rename="camel"):
    """A handler that runs now."""

    queue: str
    id: str
    """The message's id; of several messages in one call, the first's."""
    offset: int
    topic: str
    handler: str
    attempt: int
    since: int
    timeout: int | None = None
    count: int = 1
    """How many messages the call has."""
    progress: Progress | None = None


class WorkerQueue(msgspec.Struct, frozen=True, rename="camel"):
    """What a worker does for one queue."""

    name: str
    executor: str
    """threads, asyncio or processes."""
    size: int
    """How many calls may run at once."""
    busy: int
    """How many run."""


class Worker(msgspec.Struct, frozen=True, rename="camel"):
    """A process that runs handlers, as it last told of itself."""

    id: str
    name: str
    """What was started, such as `app:bus` or the script's name."""
    process: int
    host: str
    version: str
    since: int
    intake: Intake
    queues: tuple[WorkerQueue, ...]
    running: tuple[RunningCall, ...]
    """The oldest first; at most `LISTED` of them."""
    trouble: str | None = None
    """What keeps it from working, if anything does."""
    told: int = 0
    """When it last gave a sign; set by the broker."""
    silent: bool = False
    """Whether it has given no sign for longer than it should."""

    @property
    def size(self) -> int:
        return sum(queue.size for queue in self.queues)

    @property
    def busy(self) -> int:
        return sum(queue.busy for queue in self.queues)


def read_order(value: WorkerOrder | str) -> WorkerOrder:
    try:
        return WorkerOrder(value)
    except ValueError:
        raise InvalidOption(f"a worker can be told to {', '.join(WorkerOrder)}, not {str(value)[:40]!r}") from None


def order_text(order: str) -> str:
    """What a worker will do, for people."""
    match order:
        case WorkerOrder.PAUSE:
            return "will take no more messages"
        case WorkerOrder.RESUME:
            return "will take messages again"
        case _:
            return "will finish what it runs, and end"


def check_worker(worker: Worker) -> None:
    """Refuse what no worker tells of itself: the sender may be any program with a password."""
    texts = (worker.id, worker.name, worker.host, worker.version, worker.trouble or "")
    too_many = len(worker.running) > LISTED or len(worker.queues) > _QUEUES
    if not worker.id or too_many or any(len(text) > _LONGEST for text in texts):
        raise InvalidOption(
            f"a worker has an id, at most {LISTED} listed calls, {_QUEUES} queues and texts of {_LONGEST} letters"
        )
