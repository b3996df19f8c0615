"""A broker for coroutines: the same commands, awaited. A thread commits, so that no event loop waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from remuda.broker import checks
from remuda.broker.checks import Publishable
from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Runs
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.locks.reentrancy import is_refusal
from remuda.broker.embedded.pending import Pending
from remuda.broker.port import AsyncBroker
from remuda.broker.threads import NOT_YET
from remuda.core.effects import Dispatch
from remuda.model.errors import CommitTimeout, LookAgain, StorageError
from remuda.model.notes import Note
from remuda.model.operations.commands import Command, Publish, Renew, SetCredit, Settle, Unsubscribe
from remuda.model.operations.results import Differences, Receipt
from remuda.model.queues.options import Options
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND, Duration, micros
from remuda.model.values.texts import read_count, read_flag, read_name

if TYPE_CHECKING:
    from remuda.broker.backend import Backend
    from remuda.broker.waits import Waits


T = TypeVar("T")


class AsyncEmbeddedBroker(AsyncBroker):
    """The asyncio port."""

    _backend: Backend

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def runtime(self) -> Any:
        """What executes the commands."""
        return self._backend

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
        once: str | None = None,
        note: Note | None = None,
    ) -> Receipt:
        read_flag("raise_refusals", raise_refusals)
        command = checks.publish(messages, queue, unbound, None, options, timeout)
        if note is not None:
            command = checks.published_with(command, note)
        if once is None:
            receipt: Receipt = await self._finish(self._backend.begin(command), timeout)
        else:
            receipt = await self._publish_once(command, once, timeout)
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

    async def _publish_once(self, command: Publish, once: str, timeout: Duration | None) -> Receipt:
        ever, own = checks.lives(once), checks.id_for_once(command)
        while True:
            upto, found = await asyncio.to_thread(self._backend.known, own)
            with contextlib.suppress(LookAgain):
                begun = self._backend.begin(checks.published_once(command, bool(ever), upto, found))
                receipt: Receipt = await self._finish(begun, timeout)
                return receipt

    async def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt:
        command = checks.publish(messages, None, None, read_name("router", router), None, timeout)
        receipt: Receipt = await self._finish(self._backend.begin(command), timeout)
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
        tag, inbox = self._backend.new_tag(), Inbox()
        command = checks.subscribe(tag, queue, consumer, batch, credit, group, options, priority)
        pending = self._backend.begin(command, inbox)
        try:
            differs = await self._finish(pending)
        except (StorageError, asyncio.CancelledError):
            await self._call(self._backend.leave, command.queue, command.consumer)
            raise
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
        waits: Waits | None = None,
    ) -> AsyncDelivery | None:
        backend = self._backend
        tag = backend.new_tag()
        command = checks.pull(tag, queue, consumer, count, newest, clear_after, timeout)
        inbox = Inbox() if command.wait else None
        pending = backend.begin(command, inbox)
        found: Dispatch | None = None
        try:
            try:
                found = await self._finish(pending)
            except StorageError:
                backend.abandon_pull(pending, command, inbox)
                raise
            if found is not None and pending.held is not None:
                return AsyncDelivery(found, pending.held, self._settle, backend.track)
            if found is None and inbox is not None:
                with contextlib.nullcontext() if waits is None else waits.waiting(inbox):
                    found = await receive(inbox, command.wait / SECOND)
                if found is None and not inbox.closed and not await self._call(backend.cancel_pull, queue, tag):
                    found = await receive(inbox, None)
                backend.forget_pull(tag)
                if found is None:
                    backend.check_stalled()
            return None if found is None else await self._deliver(found)
        except BaseException as error:
            # Cancelled, or its loop is gone: put back what was, or will be, sent to the caller.
            if is_refusal(error):
                raise
            if found is not None and pending.result is None:
                backend.give_back(found)
            else:
                backend.abandon_pull(pending, command, inbox)
            raise

    async def renew(self, delivery: AsyncDelivery) -> bool:
        checks.check_delivery(delivery)
        if delivery.lease is None:
            return False
        renewed: bool = await self._do(Renew(delivery.queue, delivery.lease))
        return renewed

    async def close(self) -> None:
        await asyncio.to_thread(self._backend.close)

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Executing commands

    async def _do(self, command: Command) -> Any:
        return await self._finish(self._backend.begin(command))

    async def _call(self, query: Callable[..., T], *args: Any) -> T:
        """Query the broker; in a thread, if another process answers."""
        return await asyncio.to_thread(query, *args) if self._backend.remote else query(*args)

    async def _finish(self, pending: Pending, timeout: Duration | None = None) -> Any:
        # A cancelled caller stops waiting; its command is carried out all the same.
        if pending.answer is not None:
            await asyncio.shield(asyncio.wrap_future(pending.answer))
        if pending.ticket:
            await asyncio.shield(asyncio.wrap_future(self._backend.kept(pending.ticket)))
        if pending.confirmed is not None:
            try:
                async with asyncio.timeout(None if timeout is None else micros(timeout) / SECOND):
                    await asyncio.shield(asyncio.wrap_future(pending.confirmed))
            except TimeoutError:
                raise CommitTimeout(NOT_YET) from None
        return pending.result

    async def _deliver(self, dispatch: Dispatch) -> AsyncDelivery | None:
        held = self._backend.held(dispatch)
        if held is not None:
            return AsyncDelivery(dispatch, held, self._settle, self._backend.track)
        dispatch, messages = await asyncio.to_thread(self._backend.load, dispatch)
        return AsyncDelivery(dispatch, messages, self._settle, self._backend.track) if messages.bodies else None

    async def _settle(self, delivery: BaseDelivery[Any], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        if delivery.lease is None:
            return 0
        pending = self._backend.begin(Settle(delivery.queue, delivery.lease, settlement, runs), wait=wait)
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.consumer} to {self.queue}>"

    async def receive(self, timeout: Duration | None = None) -> AsyncDelivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        wait = checks.wait_seconds(timeout)
        while (dispatch := await receive(self._inbox, wait)) is not None:
            backend = self._broker._backend
            taken: Dispatch | None = dispatch
            try:
                if backend.asks(dispatch):
                    taken = await asyncio.to_thread(backend.hand_over, dispatch, self._inbox)
                else:
                    taken = backend.hand_over(dispatch, self._inbox)
                if taken is None:
                    continue
                delivery = await self._broker._deliver(taken)
            except (asyncio.CancelledError, GeneratorExit):
                self._inbox.put_back(taken or dispatch)
                raise
            if delivery is not None:
                return delivery
        if not self._inbox.closed:
            self._broker._backend.check_stalled()
        return None

    async def set_credit(self, credit: int) -> None:
        """How many unanswered messages this consumer, or its group, may hold from now on."""
        await self._broker._do(SetCredit(self.queue, self.consumer, read_count("credit", credit, 1)))

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        while (delivery := await self.receive()) is not None:
            yield delivery

    async def close(self, *, keep: bool = False) -> None:
        """Stop receiving. Unanswered messages go back to the queue or, with `keep`, can still be answered."""
        read_flag("keep", keep)
        backend = self._broker._backend
        if not backend.closed:
            await self._broker._finish(backend.begin(Unsubscribe(self.queue, self.consumer, keep=keep)))
            if keep:
                backend.forget_inbox(self._tag)
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
