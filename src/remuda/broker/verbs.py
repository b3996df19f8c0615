"""The methods for administrators, operators and spectators, which are the same on every broker: arguments are checked
and become a command or a query for the backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from remuda.broker import checks
from remuda.broker.backend import Answers
from remuda.broker.checks import Options
from remuda.broker.spectator import Spectator
from remuda.model.document import Document
from remuda.model.filters import MessageFilter
from remuda.model.notices import Notice
from remuda.model.options import QueueKwargs, QueueOptions, Status
from remuda.model.results import Declared, Health, ParkedMessage, QueueInfo
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.texts import read_count, read_name

if TYPE_CHECKING:
    from remuda.model.commands import Command

T = TypeVar("T")


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

    # Administering

    def create_queue(self, name: str, options: Options = None, /, **more: Unpack[QueueKwargs]) -> Declared:
        declared: Declared = self._do(checks.declare_queue(name, options, more))
        return declared

    def configure_queue(self, name: str, *, who: str | None = None, **changes: Unpack[QueueKwargs]) -> QueueOptions:
        options: QueueOptions = self._do(checks.configure_queue(name, changes, who))
        return options

    def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None:
        self._do(checks.set_status(name, status, who))

    def remove_queue(self, name: str, *, who: str | None = None) -> None:
        self._do(checks.remove_queue(name, who))

    def queue(self, name: str) -> QueueInfo:
        return self._backend.info(read_name("queue", name))

    def queues(self) -> list[QueueInfo]:
        return self._backend.queues()

    def create_router(self, name: str, kind: ExchangeKind | str, bindings: Iterable[Binding] = ()) -> None:
        self._do(checks.declare_exchange(name, kind, bindings))

    def bind(self, router: str, binding: Binding) -> None:
        self._do(checks.bind(router, binding))

    def unbind(self, router: str, binding: Binding) -> None:
        self._do(checks.unbind(router, binding))

    def remove_router(self, name: str) -> None:
        self._do(checks.remove_exchange(name))

    def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        return self._backend.exchanges()

    # Operating

    def clear(
        self,
        name: str,
        lanes: str = "all",
        *,
        offsets: Iterable[tuple[int, int]] | None = None,
        reason: str | None = None,
        who: str | None = None,
    ) -> int:
        count: int = self._do(checks.clear(name, lanes, offsets, reason, who))
        return count

    def parked(self, name: str, chosen: MessageFilter | None = None, limit: int = 100) -> list[ParkedMessage]:
        wanted = checks.message_filter(chosen)
        return self._backend.parked(read_name("queue", name), wanted, read_count("limit", limit, 1))

    def waiting(self, name: str) -> list[tuple[int, int]]:
        return self._backend.waiting(read_name("queue", name))

    def reprocess(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        count: int = self._do(checks.reprocess(name, chosen, who))
        return count

    def forget(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        count: int = self._do(checks.forget(name, chosen, who))
        return count

    def move(self, name: str, to: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        count: int = self._do(checks.move(name, to, chosen, who))
        return count

    # Observing

    def message(self, message: str | int) -> Document:
        return self._backend.document(checks.message_name(message))

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

    # Administering

    async def create_queue(self, name: str, options: Options = None, /, **more: Unpack[QueueKwargs]) -> Declared:
        declared: Declared = await self._do(checks.declare_queue(name, options, more))
        return declared

    async def configure_queue(
        self, name: str, *, who: str | None = None, **changes: Unpack[QueueKwargs]
    ) -> QueueOptions:
        options: QueueOptions = await self._do(checks.configure_queue(name, changes, who))
        return options

    async def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None:
        await self._do(checks.set_status(name, status, who))

    async def remove_queue(self, name: str, *, who: str | None = None) -> None:
        await self._do(checks.remove_queue(name, who))

    async def queue(self, name: str) -> QueueInfo:
        return await self._call(self._backend.info, read_name("queue", name))

    async def queues(self) -> list[QueueInfo]:
        return await self._call(self._backend.queues)

    async def create_router(self, name: str, kind: ExchangeKind | str, bindings: Iterable[Binding] = ()) -> None:
        await self._do(checks.declare_exchange(name, kind, bindings))

    async def bind(self, router: str, binding: Binding) -> None:
        await self._do(checks.bind(router, binding))

    async def unbind(self, router: str, binding: Binding) -> None:
        await self._do(checks.unbind(router, binding))

    async def remove_router(self, name: str) -> None:
        await self._do(checks.remove_exchange(name))

    async def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        return await self._call(self._backend.exchanges)

    # Operating

    async def clear(
        self,
        name: str,
        lanes: str = "all",
        *,
        offsets: Iterable[tuple[int, int]] | None = None,
        reason: str | None = None,
        who: str | None = None,
    ) -> int:
        count: int = await self._do(checks.clear(name, lanes, offsets, reason, who))
        return count

    async def parked(self, name: str, chosen: MessageFilter | None = None, limit: int = 100) -> list[ParkedMessage]:
        wanted = checks.message_filter(chosen)
        count = read_count("limit", limit, 1)
        return await self._call(self._backend.parked, read_name("queue", name), wanted, count)

    async def waiting(self, name: str) -> list[tuple[int, int]]:
        return await self._call(self._backend.waiting, read_name("queue", name))

    async def reprocess(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        count: int = await self._do(checks.reprocess(name, chosen, who))
        return count

    async def forget(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        count: int = await self._do(checks.forget(name, chosen, who))
        return count

    async def move(self, name: str, to: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        count: int = await self._do(checks.move(name, to, chosen, who))
        return count

    # Observing

    async def message(self, message: str | int) -> Document:
        import asyncio

        return await asyncio.to_thread(self._backend.document, checks.message_name(message))

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
