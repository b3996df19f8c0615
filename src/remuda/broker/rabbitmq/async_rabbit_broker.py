"""The broker on RabbitMQ for coroutines: frequent operations never wait in a thread, rare ones do."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Runs
from remuda.broker.port import AsyncBroker, AsyncSubscription
from remuda.broker.questions import Question
from remuda.broker.rabbitmq.consuming.fetcher import LINGER, Arrival, Fetcher
from remuda.broker.rabbitmq.support import refuse_keep, refuse_note, refuse_once
from remuda.model.operations.commands import Command, Publish, Pull, Subscribe
from remuda.model.operations.results import Differences, Receipt
from remuda.model.queues.options import Status
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND, Duration

if TYPE_CHECKING:
    from remuda.broker.rabbitmq.operator_verbs import Operating
    from remuda.broker.rabbitmq.rabbit_broker import RabbitBroker


T = TypeVar("T")


class AsyncRabbitBroker(AsyncBroker):
    """The asyncio port, on the same broker that threads use."""

    _backend: Operating

    def __init__(self, threads: RabbitBroker) -> None:
        self._threads = threads
        self._backend = threads.operating
        self.runtime = threads.runtime
        self.place = threads.place

    def now(self) -> int:
        return self.runtime.clock()

    # Publishing

    async def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt:
        runtime = self.runtime
        if command.exchange is not None:
            return await asyncio.to_thread(runtime.routers.route, command)
        refuse_once(once)
        refuse_note(command.note)
        runtime.check_open()
        publishing = runtime.publishing
        differs: dict[str, Differences] = {}
        if command.options is not None or publishing.missing(command):
            differs = await asyncio.to_thread(runtime.queues.ensure_all, publishing.needed(command), command.options)
            await asyncio.to_thread(publishing.prepare, command)
        # A cancelled caller stops waiting; its messages are published all the same.
        return await asyncio.shield(asyncio.wrap_future(publishing.submit(command, differs)))

    # Consuming

    async def _subscribe(self, command: Subscribe) -> AsyncRabbitSubscription:
        return AsyncRabbitSubscription(self, command, *await asyncio.to_thread(self._threads.begin, command))

    async def _pull(self, command: Pull) -> AsyncDelivery | None:
        if not command.wait or command.clear_after != "none":
            found = await asyncio.to_thread(self._threads.fetch, command)
        else:
            found = await self._fetch(command)
        return None if found is None else AsyncDelivery(*found, self._settle)

    async def _fetch(self, command: Pull) -> tuple[Any, Any] | None:
        self._threads.check_pull(command)
        runtime = self.runtime
        runtime.check_open()
        if not runtime.topology.knows(command.queue):
            await asyncio.to_thread(runtime.queues.ensure, command.queue, None, Status.NOT_INITIALIZED)
        fetcher = runtime.consumers.fetcher(command.queue)
        with runtime.consumers.waiting_pull(command.queue):
            return await self._fetch_from(fetcher, command)

    async def _fetch_from(self, fetcher: Fetcher, command: Pull) -> tuple[Any, Any] | None:
        runtime = self.runtime
        deadline = time.monotonic() + command.wait / SECOND
        while True:
            if runtime.consumers.is_giving(command.queue):
                arrived = await self._await(fetcher, command.count, deadline)
            else:
                arrived = []
                await asyncio.sleep(min(max(deadline - time.monotonic(), 0), 0.05))
            if arrived:
                assert fetcher.channel is not None
                found = runtime.consuming.hand_out(command.queue, command.consumer, fetcher.channel, fetcher, arrived)
                if found is not None:
                    return found
            elif fetcher.closed:
                return None
            if time.monotonic() >= deadline:
                return None

    async def _await(self, fetcher: Fetcher, count: int, deadline: float | None) -> Arrival:
        future = fetcher.ask(count)
        try:
            if fetcher.must_start and fetcher.fixed is None:
                await asyncio.to_thread(self.runtime.consumers.start, fetcher)
            return await self._result(fetcher, future, deadline)
        except BaseException:
            # The caller is gone: keep what was sent for the next one.
            if not fetcher.withdraw(future):
                self._threads._return(fetcher, future.result(5))
            raise

    async def _result(self, fetcher: Fetcher, future: Future[Arrival], deadline: float | None) -> Arrival:
        waiting = asyncio.wrap_future(future)
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        await asyncio.wait({waiting}, timeout=left)
        if not waiting.done() and fetcher.withdraw(future):
            waiting.cancel()
            return []
        return await waiting

    async def _renew(self, queue: str, lease: int) -> bool:
        return self._threads._renew(queue, lease)

    # Life

    async def close(self) -> None:
        await asyncio.to_thread(self.runtime.close)

    # Executing commands

    async def _do(self, command: Command) -> Any:
        return await asyncio.to_thread(self._backend.carry_out, command)

    async def _ask(self, question: Question[T]) -> T:
        return await asyncio.to_thread(question.of, self._backend)

    async def _settle(self, delivery: BaseDelivery[Any], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        if delivery.lease is None:
            return 0
        self.runtime.check_open()
        work = self.runtime.consuming.settle(delivery.lease, settlement, runs)
        if isinstance(work, int):
            return work
        done = await asyncio.to_thread(work)
        if not wait:
            return len(delivery) if runs is None else sum(count for _, count in runs)
        return await asyncio.wrap_future(done)


class AsyncRabbitSubscription(AsyncSubscription):
    """A consumer's deliveries, for a coroutine."""

    def __init__(self, broker: AsyncRabbitBroker, command: Subscribe, fetcher: Fetcher, differs: Differences) -> None:
        super().__init__(command, differs)
        self._broker = broker
        self._fetcher = fetcher
        self._batch = command.batch

    async def _receive(self, wait: float | None) -> AsyncDelivery | None:
        deadline = None if wait is None else time.monotonic() + wait
        fetcher, broker = self._fetcher, self._broker
        while not fetcher.closed:
            arrived = await broker._await(fetcher, self._batch, deadline)
            if arrived and len(arrived) < self._batch and not fetcher.closed:
                try:
                    await asyncio.sleep(LINGER)
                except asyncio.CancelledError:
                    broker._threads._return(fetcher, arrived)
                    raise
                arrived = arrived + fetcher.take(self._batch - len(arrived))
            if arrived:
                assert fetcher.channel is not None
                consuming = broker.runtime.consuming
                found = consuming.hand_out(self.queue, self.consumer, fetcher.channel, fetcher, arrived)
                if found is not None:
                    return AsyncDelivery(*found, broker._settle)
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    async def _set_credit(self, credit: int) -> None:
        self._fetcher.fixed = credit
        await asyncio.to_thread(self._broker.runtime.consumers.start, self._fetcher)

    async def _close(self, keep: bool) -> None:
        refuse_keep(keep)
        if not self._broker.runtime.closed:
            await asyncio.to_thread(self._broker.runtime.unsubscribe, self._fetcher)
