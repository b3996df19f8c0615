"""The port: what every broker can do, for threads and for coroutines. Applications see this and a URL, nothing else.

It is split by who uses it. A broker that cannot do a thing raises `Unsupported` with its name before anything happens.
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
    """Deliveries to one consumer. Closing it puts back what was not answered."""

    @property
    def consumer(self) -> str: ...
    @property
    def differs(self) -> Differences:
        """Options asked for that the queue does not have, as they stand."""
        ...

    def receive(self, timeout: Duration | None = None) -> Delivery | None: ...
    def set_credit(self, credit: int) -> None: ...
    def __iter__(self) -> Iterator[Delivery]: ...
    def close(self, *, keep: bool = False) -> None:
        """With `keep`, what was not answered stays in hand until it is."""
        ...

    def __enter__(self) -> Subscription: ...
    def __exit__(self, *exc: object) -> None: ...


class RunLedger(Protocol):
    """What all processes agree on about the runs of schedules. A broker that cannot refuse a second message with the
    same id has one as its attribute `runs`."""

    def is_planned(self, schedule: str, due: int) -> bool:
        """Whether a message for this run was published, as far as is known here."""
        ...

    def plan(self, schedule: str, due: int) -> None:
        """A message for this run was published."""
        ...

    def planned(self) -> dict[str, int]:
        """By schedule, when the newest run is due that was planned."""
        ...

    def begin(self, schedule: str, due: int, copy: str) -> bool:
        """Whether this copy of the run's message may run: the first that asked may, and may again."""
        ...


class Publisher(Protocol):
    """For those who send. Verbs take and give batches; one message is a batch of one."""

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
        """Take in messages, to the queues of their topics or to `queue` alone, and return when they are kept.

        With `unbound`, only the channels of their topics get them, and what no channel wants goes to that queue.
        What kept means is each queue's `commit_when`. `timeout` limits the wait for a consumer, where it asks for one.
        """
        ...

    def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt:
        """Publish copies through a router. What was refused, and what no binding took, stands in the receipt."""
        ...


class Consumer(Protocol):
    """For those who receive."""

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
        """Take messages of a queue as they come, up to `batch` per delivery and `credit` unanswered ones (by default
        one batch). Consumers of one `group`, also of several queues, share one credit. Those of a higher `priority`
        are served first."""
        ...

    def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> Subscription:
        """Subscribe to topics by prefix, in a channel of one's own."""
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
        """Ask a queue for messages; None if there are none, after `timeout`."""
        ...

    def renew(self, delivery: Delivery) -> bool:
        """Begin the time for an answer anew; False if the delivery is no longer ours."""
        ...


class Administrator(Protocol):
    """For those who make and change queues."""

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
    """For those who look after messages."""

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
        """Messages that wait, or wait for their time: runs of `(first offset, count)`, the next to go out first."""
        ...

    def reprocess(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    def forget(self, name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int: ...
    def move(self, name: str, to: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> int:
        """Send messages on to another queue: without a filter, all that wait."""
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
    """A broker for coroutines: the same verbs, awaited."""

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
