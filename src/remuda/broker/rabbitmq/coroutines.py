"""The broker on RabbitMQ for coroutines: frequent operations never wait in a thread, rare ones do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from remuda.broker import checks
from remuda.broker.checks import Publishable
from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Runs
from remuda.broker.port import AsyncBroker
from remuda.broker.rabbitmq.consuming.fetcher import LINGER, Arrival, Fetcher
from remuda.broker.rabbitmq.support import refuse_keep, refuse_note, refuse_once
from remuda.model.document import Document
from remuda.model.notes import Note
from remuda.model.operations.commands import Command, Pull, Subscribe
from remuda.model.operations.results import Differences, Receipt
from remuda.model.queues.options import Options, Status
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.texts import read_count, read_flag

if TYPE_CHECKING:
    from remuda.broker.rabbitmq.operating import Operating
    from remuda.broker.rabbitmq.threads import RabbitBroker


T = TypeVar("T")


class AsyncRabbitBroker(AsyncBroker):
    """The asyncio port, on the same broker that threads use."""

    _backend: Operating

    def __init__(self, threads: RabbitBroker) -> None:
        self._threads = threads
        self._backend = threads.operating
        self.runtime = threads.runtime
        self.place = threads.place

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
        refuse_once(once)
        refuse_note(note)
        runtime = self.runtime
        runtime.check_open()
        command = checks.publish(messages, queue, unbound, None, options, timeout)
        publishing = runtime.publishing
        differs: dict[str, Differences] = {}
        if command.options is not None or publishing.missing(command):
            differs = await asyncio.to_thread(runtime.queues.ensure_all, publishing.needed(command), command.options)
            await asyncio.to_thread(publishing.prepare, command)
        # A cancelled caller stops waiting; its messages are published all the same.
        receipt = await asyncio.shield(asyncio.wrap_future(publishing.submit(command, differs)))
        if receipt.refusals and raise_refusals:
            checks.report_refusals(receipt)
        return receipt

    async def route(self, router: str, messages: Publishable, *, timeout: Duration | None = None) -> Receipt:
        return await asyncio.to_thread(self._threads.route, router, messages, timeout=timeout)

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
    ) -> AsyncRabbitSubscription:
        command = checks.subscribe(0, queue, consumer, batch, credit, group, options, priority)
        fetcher, differs = await asyncio.to_thread(self._threads.begin, command)
        return AsyncRabbitSubscription(self, command, fetcher, differs)

    async def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> AsyncRabbitSubscription:
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
        command = checks.pull(0, queue, consumer, count, newest, clear_after, timeout)
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

    async def renew(self, delivery: AsyncDelivery) -> bool:
        checks.check_delivery(delivery)
        return self._threads.renew_lease(delivery)

    # Observing

    async def message(self, message: str | int) -> Document:
        return self._backend.remembered(message) or await super().message(message)

    # Life

    async def close(self) -> None:
        await asyncio.to_thread(self.runtime.close)

    async def __aenter__(self) -> AsyncRabbitBroker:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Executing commands

    async def _do(self, command: Command) -> Any:
        return await asyncio.to_thread(self._backend.carry_out, command)

    async def _call(self, query: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(query, *args)

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


class AsyncRabbitSubscription:
    """A consumer's deliveries, for a coroutine."""

    def __init__(self, broker: AsyncRabbitBroker, command: Subscribe, fetcher: Fetcher, differs: Differences) -> None:
        self._broker = broker
        self._fetcher = fetcher
        self._batch = command.batch
        self.queue = command.queue
        self.consumer = command.consumer
        self.differs = differs

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.consumer} to {self.queue}>"

    async def receive(self, timeout: Duration | None = None) -> AsyncDelivery | None:
        """The next delivery; None when the time is up or the subscription is closed."""
        wait = checks.wait_seconds(timeout)
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

    async def set_credit(self, credit: int) -> None:
        """How many unanswered messages this consumer may hold from now on."""
        self._fetcher.fixed = read_count("credit", credit, 1)
        await asyncio.to_thread(self._broker.runtime.consumers.start, self._fetcher)

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        while (delivery := await self.receive()) is not None:
            yield delivery

    async def close(self, *, keep: bool = False) -> None:
        refuse_keep(keep)
        if not self._broker.runtime.closed:
            await asyncio.to_thread(self._broker.runtime.unsubscribe, self._fetcher)

    async def __aenter__(self) -> AsyncRabbitSubscription:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
