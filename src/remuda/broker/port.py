"""The port: the operations of every broker, for threads and for coroutines. Applications see only this and a URL.

It is split by user. A broker that does not support an operation raises `Unsupported`, with its name, before anything
happens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Protocol

from remuda.broker.checks import Publishable
from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.verbs import AsyncVerbs, Verbs
from remuda.model.notes import Note
from remuda.model.operations.results import Differences, Receipt
from remuda.model.queues.options import Options
from remuda.model.values.durations import Duration


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
        once: str | None = None,
        note: Note | None = None,
    ) -> Receipt:
        """Publish messages to the queues of their topics, or only to `queue`, and return when they are stored.

        Each queue's `commit_when` defines what stored means; `timeout` limits the wait if that includes a consumer.
        With `unbound`, only the channels of their topics get them; messages that no channel wants go to that queue.
        With `once`, a message is refused as a `Duplicate` if another has its id: one that waits or is being handled
        ("waiting"), or any at all ("ever"). With `note`, the last message is a note on another; either the whole batch
        is stored, or an error is raised.
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


class Broker(Publisher, Consumer, Verbs):
    """A broker for threads: its own methods to publish and consume, and the verbs that are the same for all."""

    @property
    @abstractmethod
    def aio(self) -> AsyncBroker:
        """The same broker for coroutines."""
        ...

    @abstractmethod
    def close(self) -> None: ...
    @abstractmethod
    def __enter__(self) -> Broker: ...
    @abstractmethod
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


class AsyncBroker(AsyncVerbs):
    """A broker for coroutines: the same methods, awaited."""

    @abstractmethod
    async def publish(
        self,
        messages: Publishable,
        *,
        queue: str | None = None,
        unbound: str | None = None,
        options: Options = None,
        timeout: Duration | None = None,
        raise_refusals: bool = True,
        once: str | None = None,
        note: Note | None = None,
    ) -> Receipt: ...
    @abstractmethod
    async def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt: ...
    @abstractmethod
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
    @abstractmethod
    async def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> AsyncSubscription: ...
    @abstractmethod
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
    @abstractmethod
    async def renew(self, delivery: AsyncDelivery) -> bool: ...
    @abstractmethod
    async def close(self) -> None: ...
    @abstractmethod
    async def __aenter__(self) -> AsyncBroker: ...
    @abstractmethod
    async def __aexit__(self, *exc: object) -> None: ...
