"""The port: the operations of every broker, for threads and for coroutines. Applications see only this and a URL.

It is split by user. A broker that does not support an operation raises `Unsupported`, with its name, before anything
happens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, Unpack

from remuda.broker.checks import Options, Publishable
from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.spectator import Spectator
from remuda.model.document import Document
from remuda.model.durations import Duration
from remuda.model.filters import MessageFilter
from remuda.model.notices import Notice
from remuda.model.options import QueueKwargs, QueueOptions, Status
from remuda.model.results import Declared, Differences, ParkedMessage, QueueInfo, Receipt
from remuda.model.routing import Binding, ExchangeKind


class Subscription(Protocol):
    """Deliveries to one consumer. Closing it returns unanswered messages to the queue."""

    @property
    def consumer(self) -> str: ...
    @property
    def differs(self) -> Differences:
        """The requested options that the queue does not have, with the values it has instead."""
        ...

    def receive(self, timeout: Duration | None = None) -> Delivery | None: ...
    def set_credit(self, credit: int) -> None: ...
    def __iter__(self) -> Iterator[Delivery]: ...
    def close(self, *, keep: bool = False) -> None:
        """With `keep`, unanswered messages stay with the consumer until it answers them."""
        ...

    def __enter__(self) -> Subscription: ...
    def __exit__(self, *exc: object) -> None: ...


class RunLedger(Protocol):
    """What all processes agree on about the runs of schedules. A broker that cannot refuse a second message with the
    same id has one, in its attribute `runs`."""

    def is_planned(self, schedule: str, due: int) -> bool:
        """Whether a message for this run was published, as far as this process knows."""
        ...

    def plan(self, schedule: str, due: int) -> None:
        """Record that a message for this run was published."""
        ...

    def planned(self) -> dict[str, int]:
        """For each schedule, when its newest planned run is due."""
        ...

    def begin(self, schedule: str, due: int, copy: str) -> bool:
        """Whether this copy of the run's message may run: only the first copy that asked may, any number of times."""
        ...


class Publisher(Protocol):
    """For publishers. Methods take batches; one message is a batch of one."""

    def publish(
        self,
        messages: Publishable,
        *,
        queue: str | None = None,
        unbound: str | None = None,
        options: Options = None,
        timeout: Duration | None = None,
        raise_refusals: bool = True,
    ) -> Receipt:
        """Publish messages to the queues of their topics, or only to `queue`, and return when they are stored.

        Each queue's `commit_when` defines what stored means; `timeout` limits the wait if that includes a consumer.
        With `unbound`, only the channels of their topics get them; messages that no channel wants go to that queue.
        """
        ...

    def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt:
        """Publish copies through a router. The receipt lists what was refused and what no binding took."""
        ...


class Consumer(Protocol):
    """For consumers."""

    def subscribe(
        self,
        queue: str,
        *,
        consumer: str | None = None,
        batch: int = 1,
        credit: int | None = None,
        group: str | None = None,
        options: Options = None,
        priority: int = 0,
    ) -> Subscription:
        """Receive a queue's messages as they arrive, up to `batch` per delivery and `credit` unanswered ones (by
        default one batch). Consumers of one `group` share one credit, even across queues. Consumers with a higher
        `priority` are served first."""
        ...

    def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> Subscription:
        """Subscribe to topics by prefix, in a channel of your own."""
        ...

    def pull(
        self,
        queue: str,
        count: int = 1,
        *,
        consumer: str | None = None,
        newest: bool = False,
        clear_after: str = "none",
        timeout: Duration = 0,
    ) -> Delivery | None:
        """Ask a queue for messages; None if there are none within `timeout`."""
        ...

    def renew(self, delivery: Delivery) -> bool:
        """Restart the time for an answer; False if the delivery is no longer ours."""
        ...


class Administrator(Protocol):
    """For administrators, who create and change queues."""

    def create_queue(self, name: str, options: Options = None, /, **more: Unpack[QueueKwargs]) -> Declared: ...
    def configure_queue(self, name: str, *, who: str | None = None, **changes: Unpack[QueueKwargs]) -> QueueOptions: ...
    def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None: ...
    def remove_queue(self, name: str, *, who: str | None = None) -> None: ...
    def queue(self, name: str) -> QueueInfo: ...
    def queues(self) -> list[QueueInfo]: ...
    def create_router(self, name: str, kind: ExchangeKind | str, bindings: Iterable[Binding] = ()) -> None: ...
    def bind(self, router: str, binding: Binding) -> None: ...
    def unbind(self, router: str, binding: Binding) -> None: ...
    def remove_router(self, name: str) -> None: ...
    def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]: ...


class Operator(Protocol):
    """For operators, who look after messages."""

    def clear(
        self,
        name: str,
        lanes: str = "all",
        *,
        offsets: Iterable[tuple[int, int]] | None = None,
        reason: str | None = None,
        who: str | None = None,
    ) -> int: ...
    def parked(self, name: str, chosen: MessageFilter | None = None, limit: int = 100) -> list[ParkedMessage]:
        """Messages that ended without success, the newest first."""
        ...

    def waiting(self, name: str) -> list[tuple[int, int]]:
        """Waiting and delayed messages, as runs of `(first offset, count)`, the next to be delivered first."""
        ...

    def reprocess(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    def forget(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    def move(self, name: str, to: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        """Move messages to another queue; without a filter, all waiting ones."""
        ...

    def message(self, message: str | int) -> Document: ...
    def spectate(self) -> Spectator: ...
    def on_notice(self, handler: Callable[[Notice], None]) -> None: ...
    def off_notice(self, handler: Callable[[Notice], None]) -> None: ...


class Broker(Publisher, Consumer, Administrator, Operator, Protocol):
    """A broker for threads."""

    @property
    def aio(self) -> AsyncBroker:
        """The same broker for coroutines."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Broker: ...
    def __exit__(self, *exc: object) -> None: ...


class AsyncSubscription(Protocol):
    """Deliveries to one consumer, for coroutines."""

    @property
    def consumer(self) -> str: ...
    @property
    def differs(self) -> Differences: ...
    async def receive(self, timeout: Duration | None = None) -> AsyncDelivery | None: ...
    async def set_credit(self, credit: int) -> None: ...
    def __aiter__(self) -> AsyncIterator[AsyncDelivery]: ...
    async def close(self, *, keep: bool = False) -> None: ...
    async def __aenter__(self) -> AsyncSubscription: ...
    async def __aexit__(self, *exc: object) -> None: ...


class AsyncBroker(Protocol):
    """A broker for coroutines: the same methods, awaited."""

    async def publish(
        self,
        messages: Publishable,
        *,
        queue: str | None = None,
        unbound: str | None = None,
        options: Options = None,
        timeout: Duration | None = None,
        raise_refusals: bool = True,
    ) -> Receipt: ...
    async def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt: ...
    async def subscribe(
        self,
        queue: str,
        *,
        consumer: str | None = None,
        batch: int = 1,
        credit: int | None = None,
        group: str | None = None,
        options: Options = None,
        priority: int = 0,
    ) -> AsyncSubscription: ...
    async def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> AsyncSubscription: ...
    async def pull(
        self,
        queue: str,
        count: int = 1,
        *,
        consumer: str | None = None,
        newest: bool = False,
        clear_after: str = "none",
        timeout: Duration = 0,
    ) -> AsyncDelivery | None: ...
    async def renew(self, delivery: AsyncDelivery) -> bool: ...
    async def create_queue(self, name: str, options: Options = None, /, **more: Unpack[QueueKwargs]) -> Declared: ...
    async def configure_queue(
        self, name: str, *, who: str | None = None, **changes: Unpack[QueueKwargs]
    ) -> QueueOptions: ...
    async def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None: ...
    async def remove_queue(self, name: str, *, who: str | None = None) -> None: ...
    async def queue(self, name: str) -> QueueInfo: ...
    async def queues(self) -> list[QueueInfo]: ...
    async def clear(
        self,
        name: str,
        lanes: str = "all",
        *,
        offsets: Iterable[tuple[int, int]] | None = None,
        reason: str | None = None,
        who: str | None = None,
    ) -> int: ...
    async def parked(self, name: str, chosen: MessageFilter | None = None, limit: int = 100) -> list[ParkedMessage]: ...
    async def waiting(self, name: str) -> list[tuple[int, int]]: ...
    async def reprocess(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    async def forget(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    async def move(self, name: str, to: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    async def create_router(self, name: str, kind: ExchangeKind | str, bindings: Iterable[Binding] = ()) -> None: ...
    async def bind(self, router: str, binding: Binding) -> None: ...
    async def unbind(self, router: str, binding: Binding) -> None: ...
    async def remove_router(self, name: str) -> None: ...
    async def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]: ...
    async def message(self, message: str | int) -> Document: ...
    async def spectate(self) -> Spectator: ...
    async def on_notice(self, handler: Callable[[Notice], None]) -> None: ...
    async def off_notice(self, handler: Callable[[Notice], None]) -> None: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> AsyncBroker: ...
    async def __aexit__(self, *exc: object) -> None: ...
