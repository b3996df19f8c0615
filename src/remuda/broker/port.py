"""The port: the operations of every broker, for threads and for coroutines. Applications see only this and a URL.

What a caller passes is checked here, once, and becomes a command; each broker carries it out. A broker that does not
support an operation raises `Unsupported`, with its name, before anything happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Protocol, Self

from remuda.broker import checks
from remuda.broker.checks import Publishable
from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.verbs import AsyncVerbs, Verbs
from remuda.model.notes import Note
from remuda.model.operations.commands import Publish, Pull, Subscribe
from remuda.model.operations.results import Differences, Receipt
from remuda.model.queues.options import Options
from remuda.model.values.durations import Duration
from remuda.model.values.texts import read_count, read_flag


class _BaseSubscription(ABC):
    """A consumer of a queue."""

    queue: str
    consumer: str
    differs: Differences
    """The requested options that the queue does not have, with the values it has instead."""

    def __init__(self, command: Subscribe, differs: Differences) -> None:
        self.queue = command.queue
        self.consumer = command.consumer
        self.differs = differs

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.consumer} to {self.queue}>"


class Subscription(_BaseSubscription):
    """Deliveries to one consumer. Closing it returns unanswered messages to the queue."""

    def receive(self, timeout: Duration | None = None) -> Delivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        return self._receive(checks.wait_seconds(timeout))

    def set_credit(self, credit: int) -> None:
        """How many unanswered messages this consumer, or its group, may hold from now on."""
        self._set_credit(read_count("credit", credit, 1))

    def close(self, *, keep: bool = False) -> None:
        """Stop receiving. Unanswered messages go back to the queue or, with `keep`, can still be answered."""
        self._close(read_flag("keep", keep))

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self.receive()) is not None:
            yield delivery

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def _receive(self, wait: float | None) -> Delivery | None: ...
    @abstractmethod
    def _set_credit(self, credit: int) -> None: ...
    @abstractmethod
    def _close(self, keep: bool) -> None: ...


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


class Broker(Verbs):
    """A broker for threads. Safe to use from any thread."""

    @abstractmethod
    def now(self) -> int:
        """The time by the broker's clock, in microseconds since 1970: what `due` and `expires` are compared with. It
        never jumps, whatever the machine's clock is set to."""
        ...

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
        if raise_refusals is not True:
            read_flag("raise_refusals", raise_refusals)
        command = checks.publish(messages, queue, unbound, None, options, timeout)
        if note is not None:
            command = checks.published_with(command, note)
        receipt = self._publish(command, once, timeout)
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

    def route(
        self, router: str, messages: Publishable, *, timeout: Duration | None = None, raise_refusals: bool = True
    ) -> Receipt:
        """Publish copies through a router. The receipt lists what no binding took and, with `raise_refusals=False`,
        what was refused."""
        read_flag("raise_refusals", raise_refusals)
        receipt = self._publish(checks.route(router, messages, timeout), None, timeout)
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

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
        return self._subscribe(
            checks.subscribe(self._new_tag(), queue, consumer, batch, credit, group, options, priority)
        )

    def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> Subscription:
        """Subscribe to topics by prefix, in a channel of your own."""
        return self.subscribe(name, consumer=name, batch=batch, options=checks.channel_options(topics, options))

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
        return self._pull(checks.pull(self._new_tag(), queue, consumer, count, newest, clear_after, timeout))

    def renew(self, delivery: Delivery) -> bool:
        """Restart the time for an answer; False if the delivery is no longer ours."""
        checks.check_delivery(delivery)
        return delivery.lease is not None and self._renew(delivery.queue, delivery.lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    @abstractmethod
    def aio(self) -> AsyncBroker:
        """The same broker for coroutines."""

    @abstractmethod
    def close(self) -> None: ...

    def _new_tag(self) -> int:
        """A number for a new subscription or pull."""
        return 0

    @abstractmethod
    def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt: ...
    @abstractmethod
    def _subscribe(self, command: Subscribe) -> Subscription: ...
    @abstractmethod
    def _pull(self, command: Pull) -> Delivery | None: ...
    @abstractmethod
    def _renew(self, queue: str, lease: int) -> bool: ...


class AsyncSubscription(_BaseSubscription):
    """Deliveries to one consumer, for coroutines."""

    async def receive(self, timeout: Duration | None = None) -> AsyncDelivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        return await self._receive(checks.wait_seconds(timeout))

    async def set_credit(self, credit: int) -> None:
        """How many unanswered messages this consumer, or its group, may hold from now on."""
        await self._set_credit(read_count("credit", credit, 1))

    async def close(self, *, keep: bool = False) -> None:
        """Stop receiving. Unanswered messages go back to the queue or, with `keep`, can still be answered."""
        await self._close(read_flag("keep", keep))

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        while (delivery := await self.receive()) is not None:
            yield delivery

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def _receive(self, wait: float | None) -> AsyncDelivery | None: ...
    @abstractmethod
    async def _set_credit(self, credit: int) -> None: ...
    @abstractmethod
    async def _close(self, keep: bool) -> None: ...


class AsyncBroker(AsyncVerbs):
    """A broker for coroutines: the same methods as for threads, awaited."""

    @abstractmethod
    def now(self) -> int:
        """As for threads; it is not awaited."""
        ...

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
    ) -> Receipt:
        if raise_refusals is not True:
            read_flag("raise_refusals", raise_refusals)
        command = checks.publish(messages, queue, unbound, None, options, timeout)
        if note is not None:
            command = checks.published_with(command, note)
        receipt = await self._publish(command, once, timeout)
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

    async def route(
        self, router: str, messages: Publishable, *, timeout: Duration | None = None, raise_refusals: bool = True
    ) -> Receipt:
        read_flag("raise_refusals", raise_refusals)
        receipt = await self._publish(checks.route(router, messages, timeout), None, timeout)
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

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
    ) -> AsyncSubscription:
        return await self._subscribe(
            checks.subscribe(self._new_tag(), queue, consumer, batch, credit, group, options, priority)
        )

    async def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> AsyncSubscription:
        return await self.subscribe(name, consumer=name, batch=batch, options=checks.channel_options(topics, options))

    async def pull(
        self,
        queue: str,
        count: int = 1,
        *,
        consumer: str | None = None,
        newest: bool = False,
        clear_after: str = "none",
        timeout: Duration = 0,
    ) -> AsyncDelivery | None:
        return await self._pull(checks.pull(self._new_tag(), queue, consumer, count, newest, clear_after, timeout))

    async def renew(self, delivery: AsyncDelivery) -> bool:
        checks.check_delivery(delivery)
        return delivery.lease is not None and await self._renew(delivery.queue, delivery.lease)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None: ...

    def _new_tag(self) -> int:
        return 0

    @abstractmethod
    async def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt: ...
    @abstractmethod
    async def _subscribe(self, command: Subscribe) -> AsyncSubscription: ...
    @abstractmethod
    async def _pull(self, command: Pull) -> AsyncDelivery | None: ...
    @abstractmethod
    async def _renew(self, queue: str, lease: int) -> bool: ...
