"""A broker for coroutines: the same commands, awaited. A thread commits, so no event loop waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from remuda.broker import checks
from remuda.broker.checks import Options, Publishable
from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Runs
from remuda.broker.embedded.inbox import Inbox
from remuda.broker.embedded.pending import Pending
from remuda.broker.spectator import Spectator
from remuda.broker.threads import NOT_YET
from remuda.core.effects import Dispatch
from remuda.model.commands import Command, Renew, SetCredit, Settle, Unsubscribe
from remuda.model.document import Document
from remuda.model.durations import SECOND, Duration, micros
from remuda.model.errors import BrokerClosed, CommitTimeout
from remuda.model.filters import MessageFilter
from remuda.model.notices import Notice
from remuda.model.options import QueueOptions, Status
from remuda.model.results import Declared, Differences, ParkedMessage, QueueInfo, Receipt
from remuda.model.routing import Binding, ExchangeKind
from remuda.model.settlement import Settlement
from remuda.model.texts import read_count, read_flag, read_name

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime


class Committer:
    """Waits for the disk on behalf of coroutines: all that are waiting share one commit."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
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
                self._runtime.wait(max(ticket for ticket, _ in asked))
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
    """The asyncio port, on a `Runtime`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._committer = Committer(runtime)

    # Publishing

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
        read_flag("raise_refusals", raise_refusals)
        pending = self.runtime.submit(checks.publish(messages, queue, unbound, None, options, timeout))
        receipt: Receipt = await self._finish(pending, timeout)
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

    async def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt:
        command = checks.publish(messages, None, None, read_name("router", router), None, timeout)
        receipt: Receipt = await self._finish(self.runtime.submit(command), timeout)
        return receipt

    # Consuming

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
    ) -> AsyncEmbeddedSubscription:
        tag, inbox = self.runtime.new_tag(), Inbox()
        command = checks.subscribe(tag, queue, consumer, batch, credit, group, options, priority)
        differs = await self._finish(self.runtime.submit(command, inbox))
        return AsyncEmbeddedSubscription(self, command.queue, command.consumer, inbox, differs, tag)

    async def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> AsyncEmbeddedSubscription:
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
        runtime = self.runtime
        tag = runtime.new_tag()
        command = checks.pull(tag, queue, consumer, count, newest, clear_after, timeout)
        inbox = Inbox() if command.wait else None
        pending = runtime.submit(command, inbox)
        found: Dispatch | None = pending.result
        try:
            if pending.ticket:
                await self._finish(pending)
            if found is not None and pending.held is not None:
                return AsyncDelivery(found, pending.held, self._settle, runtime.track)
            if found is None and inbox is not None:
                found = await receive(inbox, command.wait / SECOND)
                if found is None and not inbox.closed and not runtime.cancel_pull(command.queue, tag):
                    found = await receive(inbox, None)
                runtime.forget_pull(tag)
            return None if found is None else await self._deliver(found)
        except asyncio.CancelledError:
            # Nobody is left to take what was, or will be, sent.
            if found is not None:
                runtime.give_back(found)
            elif inbox is not None:
                runtime.cancel_pull(command.queue, tag)
                inbox.divert(runtime.give_back)
            raise

    async def renew(self, delivery: AsyncDelivery) -> bool:
        checks.check_delivery(delivery)
        if delivery.lease is None:
            return False
        renewed: bool = self.runtime.submit(Renew(delivery.queue, delivery.lease)).result
        return renewed

    # Administering

    async def create_queue(self, name: str, options: Options = None, /, **more: Any) -> Declared:
        declared: Declared = await self._do(checks.declare_queue(name, options, more))
        return declared

    async def configure_queue(self, name: str, *, who: str | None = None, **changes: Any) -> QueueOptions:
        options: QueueOptions = await self._do(checks.configure_queue(name, changes, who))
        return options

    async def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None:
        await self._do(checks.set_status(name, status, who))

    async def remove_queue(self, name: str, *, who: str | None = None) -> None:
        await self._do(checks.remove_queue(name, who))

    async def queue(self, name: str) -> QueueInfo:
        return self.runtime.info(read_name("queue", name))

    async def queues(self) -> list[QueueInfo]:
        return self.runtime.queues()

    async def create_router(self, name: str, kind: ExchangeKind | str, bindings: Iterable[Binding] = ()) -> None:
        await self._do(checks.declare_exchange(name, kind, bindings))

    async def bind(self, router: str, binding: Binding) -> None:
        await self._do(checks.bind(router, binding))

    async def unbind(self, router: str, binding: Binding) -> None:
        await self._do(checks.unbind(router, binding))

    async def remove_router(self, name: str) -> None:
        await self._do(checks.remove_exchange(name))

    async def routers(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        return self.runtime.exchanges()

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
        return self.runtime.parked(read_name("queue", name), wanted, read_count("limit", limit, 1))

    async def waiting(self, name: str) -> list[tuple[int, int]]:
        return self.runtime.waiting(read_name("queue", name))

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
        return await asyncio.to_thread(self.runtime.document, checks.message_name(message))

    async def spectate(self) -> Spectator:
        """The log to read. It reads files, so iterate it in a thread: `asyncio.to_thread`."""
        return Spectator(await asyncio.to_thread(self.runtime.reader), self.runtime.flush)

    async def on_notice(self, handler: Callable[[Notice], None]) -> None:
        self.runtime.on_notice(handler)

    async def off_notice(self, handler: Callable[[Notice], None]) -> None:
        self.runtime.off_notice(handler)

    async def close(self) -> None:
        await asyncio.to_thread(self.runtime.close)
        self.release()

    def release(self) -> None:
        """Let go what this face holds of its own."""
        self._committer.close()

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Inside

    async def _do(self, command: Command) -> Any:
        return await self._finish(self.runtime.submit(command))

    async def _finish(self, pending: Pending, timeout: Duration | None = None) -> Any:
        if pending.ticket:
            # A cancelled caller stops waiting; what it asked for is kept all the same.
            await asyncio.shield(asyncio.wrap_future(self._committer.kept(pending.ticket)))
        if pending.confirmed is not None:
            try:
                async with asyncio.timeout(None if timeout is None else micros(timeout) / SECOND):
                    await asyncio.shield(asyncio.wrap_future(pending.confirmed))
            except TimeoutError:
                raise CommitTimeout(NOT_YET) from None
        return pending.result

    async def _deliver(self, dispatch: Dispatch) -> AsyncDelivery | None:
        held = self.runtime.held(dispatch)
        if held is not None:
            return AsyncDelivery(dispatch, held, self._settle, self.runtime.track)
        dispatch, messages = await asyncio.to_thread(self.runtime.load, dispatch)
        return AsyncDelivery(dispatch, messages, self._settle, self.runtime.track) if messages.bodies else None

    async def _settle(self, delivery: BaseDelivery[Any], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        if delivery.lease is None:
            return 0
        pending = self.runtime.submit(Settle(delivery.queue, delivery.lease, settlement, runs), wait=wait)
        settled: int = await self._finish(pending)
        return settled


class AsyncEmbeddedSubscription:
    """A consumer's deliveries, for a coroutine."""

    def __init__(
        self, broker: AsyncEmbeddedBroker, queue: str, consumer: str, inbox: Inbox, differs: Differences, tag: int
    ) -> None:
        self._broker = broker
        self.queue = queue
        self.consumer = consumer
        self.differs = differs
        self._inbox = inbox
        self._tag = tag

    async def receive(self, timeout: Duration | None = None) -> AsyncDelivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        wait = checks.wait_seconds(timeout)
        while (dispatch := await receive(self._inbox, wait)) is not None:
            taken = self._broker.runtime.hand_over(dispatch)
            if taken is None:
                continue
            try:
                delivery = await self._broker._deliver(taken)
            except asyncio.CancelledError:
                self._inbox.put_back(taken)
                raise
            if delivery is not None:
                return delivery
        return None

    async def set_credit(self, credit: int) -> None:
        """How many unanswered messages this consumer, or its group, may hold from now on."""
        await self._broker._do(SetCredit(self.queue, self.consumer, read_count("credit", credit, 1)))

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        while (delivery := await self.receive()) is not None:
            yield delivery

    async def close(self, *, keep: bool = False) -> None:
        """Take no more. What was not answered goes back or, with `keep`, stays in hand until it is."""
        read_flag("keep", keep)
        runtime = self._broker.runtime
        if not runtime.closed:
            await self._broker._finish(runtime.submit(Unsubscribe(self.queue, self.consumer, keep)))
            if keep:
                runtime.forget_inbox(self._tag)
        self._inbox.close()

    async def __aenter__(self) -> AsyncEmbeddedSubscription:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def receive(inbox: Inbox, timeout: float | None) -> Dispatch | None:
    """The next delivery of an inbox; None when the time is up or the inbox is closed."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        future: asyncio.Future[None] = loop.create_future()

        def wake(future: asyncio.Future[None] = future) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(_resolve, future)

        dispatch, empty = inbox.poll(wake)
        if not empty:
            return dispatch
        try:
            if deadline is not None and loop.time() >= deadline:
                return None
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            pass
        finally:
            inbox.retire(wake)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
