"""The methods for administrators, operators and spectators, which are the same on every broker.

Each method that changes something is a verb of `remuda.model.operations.verbs`, whose signature it has: the verb makes
a command, and the backend executes it. The others are queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from remuda.broker import checks
from remuda.broker.backend import Answers
from remuda.broker.spectator import Spectator
from remuda.model.document import Document
from remuda.model.notes import Noted
from remuda.model.operations import verbs
from remuda.model.operations.commands import Returns
from remuda.model.operations.filters import MessageFilter, message_filter
from remuda.model.operations.results import Health, ParkedMessage, QueueInfo
from remuda.model.operations.worker_orders import Orders, Worker, WorkerOrder, read_order
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.notices import Notice
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.values.texts import read_count, read_name, read_optional_text, read_text

if TYPE_CHECKING:
    from remuda.model.operations.commands import Command

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


def _method(verb: Callable[P, Returns[R]]) -> Callable[Concatenate[Any, P], R]:
    """The method of a verb for threads."""

    @wraps(verb)
    def method(self: Verbs, /, *arguments: P.args, **more: P.kwargs) -> R:
        result: R = self._do(verb(*arguments, **more))  # type: ignore[arg-type]
        return result

    return method


def _coroutine(verb: Callable[P, Returns[R]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method of a verb for coroutines."""

    @wraps(verb)
    async def method(self: AsyncVerbs, /, *arguments: P.args, **more: P.kwargs) -> R:
        result: R = await self._do(verb(*arguments, **more))  # type: ignore[arg-type]
        return result

    return method


class Verbs(ABC):
    """For threads."""

    _backend: Answers
    place = ""
    """The URL it was opened at, without a password."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.place or '(unnamed)'}>"

    @abstractmethod
    def _do(self, command: Command) -> Any:
        """Execute a command, and wait until its effects are stored."""

    create_queue = _method(verbs.create_queue)
    configure_queue = _method(verbs.configure_queue)
    set_status = _method(verbs.set_status)
    pause = _method(verbs.pause)
    resume = _method(verbs.resume)
    remove_queue = _method(verbs.remove_queue)
    create_router = _method(verbs.create_router)
    bind = _method(verbs.bind)
    unbind = _method(verbs.unbind)
    remove_router = _method(verbs.remove_router)
    clear = _method(verbs.clear)
    reprocess = _method(verbs.reprocess)
    requeue_front = _method(verbs.requeue_front)
    forget = _method(verbs.forget)
    move = _method(verbs.move)
    pause_key = _method(verbs.pause_key)
    resume_key = _method(verbs.resume_key)

    def queue(self, name: str) -> QueueInfo:
        return self._backend.info(read_name("queue", name))

    def queues(self) -> list[QueueInfo]:
        return self._backend.queues()

    def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        return self._backend.exchanges()

    def parked(self, name: str, chosen: MessageFilter | None = None, limit: int = 100) -> list[ParkedMessage]:
        """Messages that ended without success, the newest first."""
        wanted = message_filter(chosen)
        return self._backend.parked(read_name("queue", name), wanted, read_count("limit", limit, 1))

    def flow(self, name: str, limit: int = 10) -> FlowInfo:
        """What the queue's rules hold back, and the keys with most waiting."""
        return self._backend.flow(read_name("queue", name), read_count("limit", limit))

    def waiting(self, name: str) -> list[tuple[int, int]]:
        """Waiting and delayed messages, as runs of `(first offset, count)`, the next to be delivered first."""
        return self._backend.waiting(read_name("queue", name))

    def notes(self, queue: str, offset: int) -> list[Noted]:
        """The notes on a message that waits in this queue, is handled, or is parked there, in the order they came."""
        return self._backend.notes(read_name("queue", queue), read_count("offset", offset))

    def message(self, message: str | int) -> Document:
        return self._backend.document(checks.message_name(message))

    def workers(self) -> list[Worker]:
        """The processes that run handlers here, as they last told of themselves. On RabbitMQ, only those of this
        process."""
        return self._backend.workers()

    def order_worker(self, worker: str, order: WorkerOrder | str, *, who: str | None = None) -> None:
        """Tell a worker to `pause` (take no more messages), to `resume`, or to `stop` when it has finished. It hears
        it within seconds."""
        self._backend.order_worker(read_text("worker", worker), read_order(order), who or "")

    def cancel_running(self, queue: str, offset: int, *, who: str | None = None) -> bool:
        """Have the workers of a queue cancel a message if they handle it; they hear it within seconds. Whether the
        queue has a worker that may."""
        return self._backend.cancel_running(*_running(queue, offset, who))

    def tell_worker(self, worker: Worker) -> Orders:
        """A worker tells of itself; returns what it shall do."""
        return self._backend.tell_worker(worker)

    def worker_left(self, worker: str) -> None:
        """A worker has ended."""
        self._backend.worker_left(worker)

    def spectate(self) -> Spectator:
        return Spectator(self._backend.reader(), self._backend.flush)

    def health(self) -> Health:
        """Whether the broker is live and ready, and what does not work."""
        return self._backend.health()

    def on_notice(self, handler: Callable[[Notice], None]) -> None:
        self._backend.on_notice(handler)

    def off_notice(self, handler: Callable[[Notice], None]) -> None:
        self._backend.off_notice(handler)


class AsyncVerbs(ABC):
    """For coroutines."""

    _backend: Answers
    place = ""
    """The URL it was opened at, without a password."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.place or '(unnamed)'}>"

    @abstractmethod
    async def _do(self, command: Command) -> Any:
        """Execute a command, and wait until its effects are stored."""

    @abstractmethod
    async def _call(self, query: Callable[..., T], *args: Any) -> T:
        """Query the backend."""

    create_queue = _coroutine(verbs.create_queue)
    configure_queue = _coroutine(verbs.configure_queue)
    set_status = _coroutine(verbs.set_status)
    pause = _coroutine(verbs.pause)
    resume = _coroutine(verbs.resume)
    remove_queue = _coroutine(verbs.remove_queue)
    create_router = _coroutine(verbs.create_router)
    bind = _coroutine(verbs.bind)
    unbind = _coroutine(verbs.unbind)
    remove_router = _coroutine(verbs.remove_router)
    clear = _coroutine(verbs.clear)
    reprocess = _coroutine(verbs.reprocess)
    requeue_front = _coroutine(verbs.requeue_front)
    forget = _coroutine(verbs.forget)
    move = _coroutine(verbs.move)
    pause_key = _coroutine(verbs.pause_key)
    resume_key = _coroutine(verbs.resume_key)

    async def queue(self, name: str) -> QueueInfo:
        return await self._call(self._backend.info, read_name("queue", name))

    async def queues(self) -> list[QueueInfo]:
        return await self._call(self._backend.queues)

    async def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        return await self._call(self._backend.exchanges)

    async def parked(self, name: str, chosen: MessageFilter | None = None, limit: int = 100) -> list[ParkedMessage]:
        """Messages that ended without success, the newest first."""
        wanted = message_filter(chosen)
        count = read_count("limit", limit, 1)
        return await self._call(self._backend.parked, read_name("queue", name), wanted, count)

    async def flow(self, name: str, limit: int = 10) -> FlowInfo:
        """What the queue's rules hold back, and the keys with most waiting."""
        return await self._call(self._backend.flow, read_name("queue", name), read_count("limit", limit))

    async def waiting(self, name: str) -> list[tuple[int, int]]:
        """Waiting and delayed messages, as runs of `(first offset, count)`, the next to be delivered first."""
        return await self._call(self._backend.waiting, read_name("queue", name))

    async def notes(self, queue: str, offset: int) -> list[Noted]:
        """The notes on a message that waits in this queue, is handled, or is parked there, in the order they came."""
        return await self._call(self._backend.notes, read_name("queue", queue), read_count("offset", offset))

    async def message(self, message: str | int) -> Document:
        import asyncio

        return await asyncio.to_thread(self._backend.document, checks.message_name(message))

    async def workers(self) -> list[Worker]:
        """The processes that run handlers here, as they last told of themselves. On RabbitMQ, only those of this
        process."""
        return await self._call(self._backend.workers)

    async def order_worker(self, worker: str, order: WorkerOrder | str, *, who: str | None = None) -> None:
        """Tell a worker to `pause` (take no more messages), to `resume`, or to `stop` when it has finished. It hears
        it within seconds."""
        await self._call(self._backend.order_worker, read_text("worker", worker), read_order(order), who or "")

    async def cancel_running(self, queue: str, offset: int, *, who: str | None = None) -> bool:
        """Have the workers of a queue cancel a message if they handle it."""
        return await self._call(self._backend.cancel_running, *_running(queue, offset, who))

    async def spectate(self) -> Spectator:
        """The log to read. It reads files, so iterate it in a thread: `asyncio.to_thread`."""
        import asyncio

        return Spectator(await asyncio.to_thread(self._backend.reader), self._backend.flush)

    async def health(self) -> Health:
        """Whether the broker is live and ready, and what does not work."""
        health: Health = await self._call(self._backend.health)
        return health

    async def on_notice(self, handler: Callable[[Notice], None]) -> None:
        await self._call(self._backend.on_notice, handler)

    async def off_notice(self, handler: Callable[[Notice], None]) -> None:
        await self._call(self._backend.off_notice, handler)


def _running(queue: str, offset: int, who: str | None) -> tuple[str, int, str]:
    return read_name("queue", queue), read_count("offset", offset), read_optional_text("who", who) or ""
