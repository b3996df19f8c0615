"""A broker for coroutines: the same commands, awaited. A thread commits, so that no event loop waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from remuda.broker import checks
from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Runs
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.locks.reentrancy import is_refusal
from remuda.broker.embedded.pending import Pending
from remuda.broker.port import AsyncBroker, AsyncSubscription
from remuda.broker.questions import Question
from remuda.broker.threads import NOT_YET
from remuda.core.effects import Dispatch
from remuda.model.errors import CommitTimeout, LookAgain, StorageError
from remuda.model.operations.commands import Command, Publish, Pull, Renew, SetCredit, Settle, Subscribe, Unsubscribe
from remuda.model.operations.results import Differences, Receipt
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND, Duration, micros

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

    def now(self) -> int:
        return self._backend.clock()

    # Publishing and consuming

    async def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt:
        if once is None:
            receipt: Receipt = await self._finish(self._backend.begin(command), timeout)
        else:
            receipt = await self._publish_once(command, once, timeout)
        return receipt

    async def _publish_once(self, command: Publish, once: str, timeout: Duration | None) -> Receipt:
        ever, own = checks.lives(once), checks.id_for_once(command)
        while True:
            upto, found = await asyncio.to_thread(self._backend.known, own)
            with contextlib.suppress(LookAgain):
                begun = self._backend.begin(checks.published_once(command, bool(ever), upto, found))
                receipt: Receipt = await self._finish(begun, timeout)
                return receipt

    def _new_tag(self) -> int:
        return self._backend.new_tag()

    async def _subscribe(self, command: Subscribe) -> AsyncEmbeddedSubscription:
        inbox = Inbox()
        pending = self._backend.begin(command, inbox)
        try:
            differs = await self._finish(pending)
        except (StorageError, asyncio.CancelledError):
            await self._call(self._backend.leave, command.queue, command.consumer)
            raise
        return AsyncEmbeddedSubscription(self, command, inbox, differs)

    async def pull_while(self, waits: Waits, queue: str, count: int, timeout: Duration) -> AsyncDelivery | None:
        """A pull that ends before its time when `waits` do."""
        return await self._pull(checks.pull(self._new_tag(), queue, None, count, False, "none", timeout), waits)

    async def _pull(self, command: Pull, waits: Waits | None = None) -> AsyncDelivery | None:
        backend, tag = self._backend, command.tag
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
                if found is None and not inbox.closed and not await self._call(backend.cancel_pull, command.queue, tag):
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

    async def _renew(self, queue: str, lease: int) -> bool:
        renewed: bool = await self._do(Renew(queue, lease))
        return renewed

    async def close(self) -> None:
        await asyncio.to_thread(self._backend.close)

    # Executing commands

    async def _do(self, command: Command) -> Any:
        return await self._finish(self._backend.begin(command))

    async def _ask(self, question: Question[T]) -> T:
        if question.reads_files:
            return await asyncio.to_thread(question.of, self._backend)
        return await self._call(question.of, self._backend)

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


class AsyncEmbeddedSubscription(AsyncSubscription):
    """A consumer's deliveries, for a coroutine."""

    def __init__(self, broker: AsyncEmbeddedBroker, command: Subscribe, inbox: Inbox, differs: Differences) -> None:
        super().__init__(command, differs)
        self._broker = broker
        self._inbox = inbox
        self._tag = command.tag

    async def _receive(self, wait: float | None) -> AsyncDelivery | None:
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

    async def _set_credit(self, credit: int) -> None:
        await self._broker._do(SetCredit(self.queue, self.consumer, credit))

    async def _close(self, keep: bool) -> None:
        backend = self._broker._backend
        if not backend.closed:
            await self._broker._finish(backend.begin(Unsubscribe(self.queue, self.consumer, keep=keep)))
            if keep:
                backend.forget_inbox(self._tag)
        self._inbox.close()


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
