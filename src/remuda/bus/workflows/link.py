"""The way from a run to the broker: in a thread, on a loop, or from a handler's process through its parent."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import msgspec

from remuda.bus.execution import watchdog
from remuda.bus.execution.processes.parent import parent
from remuda.bus.workflows.mailbox import Signal, Waiter
from remuda.model.messages import Messages
from remuda.model.notes import Note, Noted
from remuda.model.operations.results import Receipt
from remuda.model.queues.system_queues import UNROUTED

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    import asyncio  # which takes longer to load than the bus itself, and most programs never need it

    return await asyncio.to_thread(call, *args, **kwargs)


class Link(Protocol):
    """Each method gives its result, or what has to be awaited for it."""

    def notes(self, queue: str, offset: int) -> Any: ...
    def publish(self, messages: Messages, note: Note) -> Any: ...
    def mailbox(self, act: str, topic: str, key: str | None, waiter: Waiter) -> Any: ...
    def pause(self, seconds: float) -> Any: ...
    def now(self) -> int: ...


class ThreadLink:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def notes(self, queue: str, offset: int) -> list[Noted]:
        return self._bus.broker.notes(queue, offset)

    def publish(self, messages: Messages, note: Note) -> Receipt:
        receipt = self._bus.broker.publish(messages, unbound=UNROUTED, note=note)
        watchdog.check()
        return receipt

    def mailbox(self, act: str, topic: str, key: str | None, waiter: Waiter) -> Signal | None:
        mailboxes = self._bus.workflows.mailboxes
        return (mailboxes.wait if act == "wait" else mailboxes.leave)(topic, key, waiter)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> int:
        return self._bus.now()


class LoopLink:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def notes(self, queue: str, offset: int) -> Awaitable[list[Noted]]:
        return self._bus.broker.aio.notes(queue, offset)

    def publish(self, messages: Messages, note: Note) -> Awaitable[Receipt]:
        return self._bus.broker.aio.publish(messages, unbound=UNROUTED, note=note)

    def mailbox(self, act: str, topic: str, key: str | None, waiter: Waiter) -> Awaitable[Signal | None]:
        return in_thread(ThreadLink(self._bus).mailbox, act, topic, key, waiter)

    def pause(self, seconds: float) -> Awaitable[None]:
        import asyncio

        return asyncio.sleep(seconds)

    def now(self) -> int:
        return self._bus.now()


class AskNotes(msgspec.Struct, frozen=True):
    """A handler's process asks for the notes of a message."""

    queue: str
    offset: int


class PublishNote(msgspec.Struct, frozen=True):
    """A handler's process publishes messages with a note."""

    messages: Messages
    note: Note


class AskMailbox(msgspec.Struct, frozen=True):
    """A handler's process waits for a message, or no longer."""

    act: str
    topic: str
    key: str | None
    waiter: Waiter


class AskNow(msgspec.Struct, frozen=True):
    """A handler's process asks for the time."""


Asked = AskNotes | PublishNote | AskMailbox | AskNow


class ParentLink:
    """In a handler's process."""

    def notes(self, queue: str, offset: int) -> list[Noted]:
        found: list[Noted] = self._ask(AskNotes(queue, offset))
        return found

    def publish(self, messages: Messages, note: Note) -> Receipt:
        receipt: Receipt = self._ask(PublishNote(messages, note))
        return receipt

    def mailbox(self, act: str, topic: str, key: str | None, waiter: Waiter) -> Signal | None:
        found: Signal | None = self._ask(AskMailbox(act, topic, key, waiter))
        return found

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> int:
        now: int = self._ask(AskNow())
        return now

    def _ask(self, asked: Asked) -> Any:
        connection = parent()
        assert connection is not None
        return connection.ask(asked)


def answer(bus: Bus, asked: Asked) -> Any:
    """The parent's answer to a handler's process."""
    match asked:
        case AskNotes(queue, offset):
            return bus.broker.notes(queue, offset)
        case PublishNote(messages, note):
            return ThreadLink(bus).publish(messages, note)
        case AskMailbox(act, topic, key, waiter):
            return ThreadLink(bus).mailbox(act, topic, key, waiter)
        case AskNow():
            return bus.now()


def link_of(bus: Bus | None, *, loop: bool) -> Link:
    """The way of a run in this process."""
    if parent() is not None:
        return ParentLink()
    assert bus is not None
    return LoopLink(bus) if loop else ThreadLink(bus)
