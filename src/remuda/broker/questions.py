"""What administrators, operators and spectators ask a broker, each question declared once.

A question is a function that checks its arguments. Its signature is that of the method of every broker, for threads and
for coroutines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from remuda.broker import checks
from remuda.broker.backend import Answers
from remuda.broker.spectator import Spectator
from remuda.model.document import Document
from remuda.model.notes import Noted
from remuda.model.operations.filters import MessageFilter, Which, message_filter
from remuda.model.operations.results import Health, ParkedMessage, QueueInfo
from remuda.model.operations.worker_orders import Orders, Worker, WorkerOrder, read_order
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.notices import Notice
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.values.option_reading import read_enum
from remuda.model.values.texts import read_count, read_name, read_optional_text, read_text

P = ParamSpec("P")
R = TypeVar("R")


class Question(Generic[R]):
    """A method of a backend, with its arguments."""

    reads_files = False
    """Whether it may take long, so that coroutines ask it in a thread."""

    def __init__(self, method: Callable[Concatenate[Any, P], R], *arguments: P.args, **more: P.kwargs) -> None:
        self.name = method.__name__
        self.arguments = arguments

    def of(self, backend: Answers) -> R:
        answer: R = getattr(backend, self.name)(*self.arguments)
        return answer


def queue(name: str) -> Question[QueueInfo]:
    return Question(Answers.info, read_name("queue", name))


def queues() -> Question[list[QueueInfo]]:
    return Question(Answers.queues)


def routers() -> Question[dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]]:
    return Question(Answers.exchanges)


def parked(name: str, chosen: MessageFilter | None = None, limit: int = 100) -> Question[list[ParkedMessage]]:
    """Messages that ended without success, the newest first."""
    wanted = message_filter(chosen)
    return Question(Answers.parked, read_name("queue", name), wanted, read_count("limit", limit, 1))


def flow(name: str, limit: int = 10) -> Question[FlowInfo]:
    """What the queue's rules hold back, and the keys with most waiting."""
    return Question(Answers.flow, read_name("queue", name), read_count("limit", limit))


def waiting(name: str, which: Which | str = Which.WAITING) -> Question[list[tuple[int, int]]]:
    """Waiting and delayed messages, as runs of `(first offset, count)`, the next to be delivered first. Of these, only
    `new` ones, or those that were `returned` and are delayed; or else those that are `handled` now."""
    return Question(Answers.waiting, read_name("queue", name), read_enum("which", which, Which))


def notes(queue: str, offset: int, after: int = 0) -> Question[list[Noted]]:
    """The notes on a message that waits in this queue, is handled, or is parked there, in the order they came; without
    the first `after` of them."""
    return Question(Answers.notes, read_name("queue", queue), read_count("offset", offset), read_count("after", after))


def message(message: str | int) -> Question[Document]:
    """A message with its life in each of its queues, by its id or its offset."""
    return _FromFiles(Answers.document, checks.message_name(message))


def workers() -> Question[list[Worker]]:
    """The processes that run handlers here, as they last told of themselves. On RabbitMQ, only those of this
    process."""
    return Question(Answers.workers)


def order_worker(worker: str, order: WorkerOrder | str, *, who: str | None = None) -> Question[None]:
    """Tell a worker to `pause` (take no more messages), to `resume`, or to `stop` when it has finished. It hears
    it within seconds."""
    return Question(Answers.order_worker, read_text("worker", worker), read_order(order), who or "")


def cancel_running(queue: str, offset: int, *, who: str | None = None) -> Question[bool]:
    """Have the workers of a queue cancel a message if they handle it; they hear it within seconds. Whether the
    queue has a worker that may."""
    asks = read_optional_text("who", who) or ""
    return Question(Answers.cancel_running, read_name("queue", queue), read_count("offset", offset), asks)


def tell_worker(worker: Worker) -> Question[Orders]:
    """A worker tells of itself; returns what it shall do."""
    return Question(Answers.tell_worker, worker)


def worker_left(worker: str) -> Question[None]:
    """A worker has ended."""
    return Question(Answers.worker_left, worker)


def spectate() -> Question[Spectator]:
    """The log to read. It reads files: coroutines iterate it in a thread, with `asyncio.to_thread`."""
    return _Spectate(Answers.reader)


def health() -> Question[Health]:
    """Whether the broker is live and ready, and what does not work."""
    return Question(Answers.health)


def on_notice(handler: Callable[[Notice], None]) -> Question[None]:
    """Call a function with each notice of queues and messages, on a thread of its own."""
    return Question(Answers.on_notice, handler)


def off_notice(handler: Callable[[Notice], None]) -> Question[None]:
    """Call it no more."""
    return Question(Answers.off_notice, handler)


class _FromFiles(Question[R]):
    reads_files = True


class _Spectate(_FromFiles[Any]):
    def of(self, backend: Answers) -> Spectator:
        return Spectator(backend.reader(), backend.flush)
