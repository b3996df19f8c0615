"""The embedded broker for coroutines: the same host, awaited. A thread commits, so no event loop waits for a disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from remuda.broker.asking import (
    as_batch,
    channel_options,
    check_clear_after,
    consumer_name,
    puller_name,
    queue_options,
    report_refusals,
)
from remuda.broker.delivery import Answers, AsyncDelivery, Runs
from remuda.broker.host import Host, PullRequest
from remuda.broker.inbox import Inbox
from remuda.broker.pending import Pending
from remuda.broker.port import Options, Publishable
from remuda.broker.spectator import Spectator
from remuda.core.effects import Notice, Sending
from remuda.core.info import QueueInfo
from remuda.core.operators import Parked, Selection
from remuda.core.receipts import Declared, Differences, Receipt
from remuda.core.settling import Verdict
from remuda.model.document import Document
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import BrokerClosed, CommitTimeout
from remuda.model.options import QueueOptions, Status, read_enum
from remuda.model.records import Binding, RouterKind

T = TypeVar("T")


class Committer:
    """Waits for the disk on behalf of coroutines: all that are waiting share one commit."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._asked: list[tuple[int, Future[None]]] = []
        self._ready = threading.Condition(threading.Lock())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="remuda-committer", daemon=True)
        self._thread.start()

    def kept(self, ticket: int) -> Future[None]:
        future: Future[None] = Future()
        with self._ready:
            if self._closed:
                raise BrokerClosed("the broker is closed; open it again to go on")
            self._asked.append((ticket, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._asked or self._closed)
                asked, self._asked = self._asked, []
                if not asked:
                    return
            failure: Exception | None = None
            try:
                self._host.wait(max(ticket for ticket, _ in asked))
            except Exception as error:
                failure = error
            for _, future in asked:
                if not future.set_running_or_notify_cancel():
                    continue
                if failure is None:
                    future.set_result(None)
                else:
                    future.set_exception(failure)


class AsyncEmbeddedBroker:
    """Implements the asyncio port on a `Host`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._committer = Committer(host)

    async def publish(
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
        receipt = (await self._finish(pending, timeout))[0]
        if raise_refusals:
            report_refusals(receipt)
        return receipt

    async def route(self, router: str, messages: Publishable) -> list[Receipt]:
        return await self._finish(self.host.publish(as_batch(messages), router=router))

    async def subscribe(
        self, queue: str, *, consumer: str | None = None, batch: int = 1, options: Options = None
    ) -> AsyncEmbeddedSubscription:
        name = consumer_name(consumer)
        inbox, differs = await self._finish(self.host.subscribe(queue, name, batch, options))
        return AsyncEmbeddedSubscription(self, queue, name, inbox, differs)

    async def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> AsyncEmbeddedSubscription:
        return await self.subscribe(name, consumer=name, batch=batch, options=channel_options(topics, options))

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
        wait = micros(timeout)
        pending = self.host.pull(
            queue, puller_name(consumer), count=count, newest=newest,
            clear_after=check_clear_after(clear_after), wait=wait,
        )  # fmt: skip
        found = pending.result
        try:
            await self._finish(pending)
            if isinstance(found, PullRequest):
                found = await self._answer_to(found, wait)
            return await self._deliver(found)
        except asyncio.CancelledError:
            if isinstance(found, PullRequest):
                self.host.refuse_pull(found)
            elif found is not None:
                self.host.give_back(found)
            raise

    async def renew(self, delivery: AsyncDelivery) -> bool:
        return self.host.renew(delivery.queue, delivery.lease)

    async def create_queue(self, name: str, options: Options = None, /, **more: Any) -> Declared:
        return await self._finish(self.host.declare(name, queue_options(options, more)))

    async def configure_queue(self, name: str, *, who: str | None = None, **changes: Any) -> QueueOptions:
        return await self._finish(self.host.configure(name, changes, who))

    async def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None:
        await self._finish(self.host.set_status(name, read_enum("status", status, Status), who))

    async def remove_queue(self, name: str, *, who: str | None = None) -> None:
        await self._finish(self.host.remove(name, who))

    async def queue(self, name: str) -> QueueInfo:
        return self.host.info(name)

    async def queues(self) -> list[QueueInfo]:
        return self.host.queues()

    async def clear(self, name: str, lanes: str = "all", *, who: str | None = None) -> int:
        return await self._finish(self.host.clear(name, lanes, who))

    async def parked(self, name: str, selection: Selection | None = None, limit: int = 100) -> list[Parked]:
        return self.host.parked(name, selection or Selection(), limit)

    async def reprocess(self, name: str, selection: Selection | None = None, *, who: str | None = None) -> int:
        return await self._finish(self.host.reprocess(name, selection or Selection(), who))

    async def forget(self, name: str, selection: Selection | None = None, *, who: str | None = None) -> int:
        return await self._finish(self.host.forget(name, selection or Selection(), who))

    async def create_router(self, name: str, kind: RouterKind | str, bindings: Iterable[Binding]) -> None:
        await self._finish(self.host.set_router(name, read_enum("kind", kind, RouterKind), bindings))

    async def remove_router(self, name: str) -> None:
        await self._finish(self.host.remove_router(name))

    async def message(self, message: str | int) -> Document:
        return await asyncio.to_thread(self.host.document, message)

    async def spectate(self) -> Spectator:
        """The log to read. It reads files, so iterate it in a thread: `asyncio.to_thread`."""
        return Spectator(await asyncio.to_thread(self.host.reader), self.host.flush)

    async def on_notice(self, handler: Callable[[Notice], None]) -> None:
        self.host.on_notice(handler)

    async def close(self) -> None:
        await asyncio.to_thread(self.host.close)
        self.release()

    def release(self) -> None:
        """Let go what this face holds of its own."""
        self._committer.close()

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _finish(self, pending: Pending[T], timeout: Duration | None = None) -> T:
        if pending.ticket:
            # A cancelled caller stops waiting; what it asked for is kept all the same.
            await asyncio.shield(asyncio.wrap_future(self._committer.kept(pending.ticket)))
        if pending.commit is not None:
            try:
                async with asyncio.timeout(None if timeout is None else micros(timeout) / SECOND):
                    await asyncio.shield(asyncio.wrap_future(pending.commit))
            except TimeoutError:
                raise CommitTimeout("no consumer has answered yet; the message is kept and will be delivered") from None
        return pending.result

    async def _answer_to(self, asked: PullRequest, wait: int) -> Sending | None:
        sending = await asked.inbox.get_async(wait / SECOND)
        if sending is not None:
            return sending
        withdrawn = self.host.end_pull(asked)
        return await asked.inbox.get_async(0 if withdrawn else None)

    async def _deliver(self, sending: Sending | None) -> AsyncDelivery | None:
        if sending is None:
            return None
        held = self.host.held(sending)
        if held is not None:
            return AsyncDelivery(sending, held, self._settle, self.host.track)
        found, messages = await asyncio.to_thread(self.host.load, sending)
        return AsyncDelivery(found, messages, self._settle, self.host.track) if len(messages) else None

    async def _settle(
        self, delivery: Answers[Any], verdict: Verdict, runs: Runs | None, to: str | None, wait: bool
    ) -> int:
        return await self._finish(self.host.settle(delivery.queue, delivery.lease, verdict, runs, to, wait=wait))


class AsyncEmbeddedSubscription:
    """A consumer's deliveries, for a coroutine."""

    def __init__(
        self, broker: AsyncEmbeddedBroker, queue: str, consumer: str, inbox: Inbox, differs: Differences
    ) -> None:
        self._broker = broker
        self.queue = queue
        self.consumer = consumer
        self.differs = differs
        self._inbox = inbox

    async def receive(self, timeout: Duration | None = None) -> AsyncDelivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        wait = None if timeout is None else micros(timeout) / SECOND
        while (sending := await self._inbox.get_async(wait)) is not None:
            try:
                delivery = await self._broker._deliver(sending)
            except asyncio.CancelledError:
                self._inbox.put_back(sending)
                raise
            if delivery is not None:
                return delivery
        return None

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        while (delivery := await self.receive()) is not None:
            yield delivery

    async def close(self) -> None:
        await self._broker._finish(self._broker.host.unsubscribe(self.queue, self.consumer))

    async def __aenter__(self) -> AsyncEmbeddedSubscription:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
