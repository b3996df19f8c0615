"""The embedded broker for threads: a directory, or memory, inside this process."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from remuda.broker.aio import AsyncEmbeddedBroker
from remuda.broker.asking import (
    as_batch,
    channel_options,
    check_clear_after,
    consumer_name,
    puller_name,
    queue_options,
    report_refusals,
)
from remuda.broker.delivery import Answers, Delivery, Runs
from remuda.broker.host import Host, PullRequest
from remuda.broker.inbox import Inbox
from remuda.broker.pending import Pending
from remuda.broker.port import Options, Publishable
from remuda.broker.spectator import Spectator
from remuda.broker.upkeep import Removed
from remuda.core.effects import Notice, Sending
from remuda.core.info import QueueInfo
from remuda.core.operators import Parked, Selection
from remuda.core.receipts import Declared, Differences, Receipt
from remuda.core.settling import Verdict
from remuda.log.recovery import RecoveryReport
from remuda.model.document import Document
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import CommitTimeout
from remuda.model.options import QueueOptions, Status, read_enum
from remuda.model.records import Binding, RouterKind

T = TypeVar("T")


class EmbeddedBroker:
    """Implements the port on a `Host`. Safe to use from any thread."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._aio: AsyncEmbeddedBroker | None = None

    @property
    def recovery(self) -> RecoveryReport:
        """What was cut or lost when the log was opened."""
        return self.host.engine.report

    @property
    def aio(self) -> AsyncEmbeddedBroker:
        """The same broker for coroutines."""
        if self._aio is None:
            self._aio = AsyncEmbeddedBroker(self.host)
        return self._aio

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
        pending = self.host.publish(as_batch(messages), queue=queue, unbound=unbound, options=options)
        receipt = self._finish(pending, timeout)[0]
        if raise_refusals:
            report_refusals(receipt)
        return receipt

    def route(self, router: str, messages: Publishable) -> list[Receipt]:
        return self._finish(self.host.publish(as_batch(messages), router=router))

    def subscribe(
        self, queue: str, *, consumer: str | None = None, batch: int = 1, options: Options = None
    ) -> EmbeddedSubscription:
        name = consumer_name(consumer)
        inbox, differs = self._finish(self.host.subscribe(queue, name, batch, options))
        return EmbeddedSubscription(self, queue, name, inbox, differs)

    def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> EmbeddedSubscription:
        return self.subscribe(name, consumer=name, batch=batch, options=channel_options(topics, options))

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
        wait = micros(timeout)
        pending = self.host.pull(
            queue, puller_name(consumer), count=count, newest=newest,
            clear_after=check_clear_after(clear_after), wait=wait,
        )  # fmt: skip
        found = self._finish(pending)
        if isinstance(found, PullRequest):
            sending = found.inbox.get(wait / SECOND)
            if sending is None:
                withdrawn = self.host.end_pull(found)
                sending = found.inbox.get(0 if withdrawn else None)
            found = sending
        return self._deliver(found)

    def renew(self, delivery: Delivery) -> bool:
        return self.host.renew(delivery.queue, delivery.lease)

    def create_queue(self, name: str, options: Options = None, /, **more: Any) -> Declared:
        return self._finish(self.host.declare(name, queue_options(options, more)))

    def configure_queue(self, name: str, *, who: str | None = None, **changes: Any) -> QueueOptions:
        return self._finish(self.host.configure(name, changes, who))

    def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None:
        self._finish(self.host.set_status(name, read_enum("status", status, Status), who))

    def remove_queue(self, name: str, *, who: str | None = None) -> None:
        self._finish(self.host.remove(name, who))

    def queue(self, name: str) -> QueueInfo:
        return self.host.info(name)

    def queues(self) -> list[QueueInfo]:
        return self.host.queues()

    def clear(self, name: str, lanes: str = "all", *, who: str | None = None) -> int:
        return self._finish(self.host.clear(name, lanes, who))

    def parked(self, name: str, selection: Selection | None = None, limit: int = 100) -> list[Parked]:
        return self.host.parked(name, selection or Selection(), limit)

    def reprocess(self, name: str, selection: Selection | None = None, *, who: str | None = None) -> int:
        return self._finish(self.host.reprocess(name, selection or Selection(), who))

    def forget(self, name: str, selection: Selection | None = None, *, who: str | None = None) -> int:
        return self._finish(self.host.forget(name, selection or Selection(), who))

    def create_router(self, name: str, kind: RouterKind | str, bindings: Iterable[Binding]) -> None:
        self._finish(self.host.set_router(name, read_enum("kind", kind, RouterKind), bindings))

    def remove_router(self, name: str) -> None:
        self._finish(self.host.remove_router(name))

    def message(self, message: str | int) -> Document:
        return self.host.document(message)

    def spectate(self) -> Spectator:
        return Spectator(self.host.reader(), self.host.flush)

    def on_notice(self, handler: Callable[[Notice], None]) -> None:
        self.host.on_notice(handler)

    def checkpoint(self) -> None:
        """Make the next start begin here. The broker does this by itself as its log grows."""
        self.host.upkeep.checkpoint()

    def collect(self) -> Removed:
        """Let go what has outlived its retention. The broker does this by itself every `collect_interval`."""
        self.host.upkeep.checkpoint()
        self.host.upkeep.seal()
        return self.host.upkeep.collect()

    def close(self) -> None:
        self.host.close()
        if self._aio is not None:
            self._aio.release()

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _finish(self, pending: Pending[T], timeout: Duration | None = None) -> T:
        self.host.wait(pending.ticket)
        if pending.commit is not None:
            try:
                pending.commit.result(None if timeout is None else micros(timeout) / SECOND)
            except concurrent.futures.TimeoutError:
                raise CommitTimeout("no consumer has answered yet; the message is kept and will be delivered") from None
        return pending.result

    def _deliver(self, sending: Sending | None) -> Delivery | None:
        if sending is None:
            return None
        sending, messages = self.host.load(sending)
        return Delivery(sending, messages, self._settle, self.host.track) if len(messages) else None

    def _settle(self, delivery: Answers[int], verdict: Verdict, runs: Runs | None, to: str | None, wait: bool) -> int:
        return self._finish(self.host.settle(delivery.queue, delivery.lease, verdict, runs, to, wait=wait))


class EmbeddedSubscription:
    """A consumer's deliveries, for a thread."""

    def __init__(self, broker: EmbeddedBroker, queue: str, consumer: str, inbox: Inbox, differs: Differences) -> None:
        self._broker = broker
        self.queue = queue
        self.consumer = consumer
        self.differs = differs
        self._inbox = inbox

    def receive(self, timeout: Duration | None = None) -> Delivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        wait = None if timeout is None else micros(timeout) / SECOND
        while (sending := self._inbox.get(wait)) is not None:
            delivery = self._broker._deliver(sending)
            if delivery is not None:
                return delivery
        return None

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self.receive()) is not None:
            yield delivery

    def close(self) -> None:
        self._broker._finish(self._broker.host.unsubscribe(self.queue, self.consumer))

    def __enter__(self) -> EmbeddedSubscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
