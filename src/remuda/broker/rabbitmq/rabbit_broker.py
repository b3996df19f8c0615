"""The broker on RabbitMQ, for threads and for coroutines: two faces of the same calls."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Delivery, Runs
from remuda.broker.embedded.clock import Clock
from remuda.broker.options import BrokerOptions
from remuda.broker.port import AsyncBroker, AsyncSubscription, Broker, Subscription
from remuda.broker.questions import Question
from remuda.broker.rabbitmq.consuming.fetcher import Fetcher
from remuda.broker.rabbitmq.rabbit_calls import Calls, run, run_async
from remuda.broker.rabbitmq.rabbit_runtime import Runtime
from remuda.broker.rabbitmq.record_sinks import RecordSink
from remuda.broker.rabbitmq.shared_state.schedule_runs import ScheduleRuns
from remuda.broker.rabbitmq.support import refuse_keep
from remuda.model.operations.commands import Command, Publish, Pull, Subscribe
from remuda.model.operations.results import Differences, Receipt
from remuda.model.settlement import Settlement
from remuda.model.values.durations import Duration
from remuda.model.values.urls import parse_url

T = TypeVar("T")


def open_rabbit_broker(
    url: str, *, clock: Clock | None = None, records: RecordSink | None = None, **options: Any
) -> RabbitBroker:
    """Open the broker at `amqp://user:password@host1,host2/vhost`."""
    broker = RabbitBroker(Runtime(url, BrokerOptions.parse(**options), clock, records).open())
    broker.place = str(parse_url(url))
    return broker


class RabbitBroker(Broker):
    """The port for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.calls = Calls(runtime)
        self._backend = self.calls.operating
        self.runs = ScheduleRuns(runtime.definitions, runtime.clock)
        self._aio: AsyncRabbitBroker | None = None

    def now(self) -> int:
        return self.runtime.clock()

    @property
    def aio(self) -> AsyncRabbitBroker:
        """The same broker for coroutines."""
        if self._aio is None:
            self._aio = AsyncRabbitBroker(self.calls, self.place)
        return self._aio

    def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt:
        return run(self.calls.publish(command, once))

    def _subscribe(self, command: Subscribe) -> RabbitSubscription:
        return RabbitSubscription(self, command, *run(self.calls.subscribe(command)))

    def _pull(self, command: Pull) -> Delivery | None:
        found = run(self.calls.pull(command))
        return None if found is None else Delivery(*found, self._settle)

    def _settle(self, delivery: BaseDelivery[int], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        return run(self.calls.settle(delivery, settlement, runs, wait))

    def _renew(self, queue: str, lease: int) -> bool:
        return self.calls.renew(queue, lease)

    def _do(self, command: Command) -> Any:
        return self.calls.operating.carry_out(command)

    def close(self) -> None:
        self.runtime.close()


class RabbitSubscription(Subscription):
    """A consumer's deliveries, for a thread."""

    def __init__(self, broker: RabbitBroker, command: Subscribe, fetcher: Fetcher, differs: Differences) -> None:
        super().__init__(command, differs)
        self._broker = broker
        self._fetcher = fetcher
        self._batch = command.batch

    def _receive(self, wait: float | None) -> Delivery | None:
        found = run(self._broker.calls.receive(self._fetcher, self.consumer, self._batch, wait))
        return None if found is None else Delivery(*found, self._broker._settle)

    def _set_credit(self, credit: int) -> None:
        run(self._broker.calls.set_credit(self._fetcher, credit))

    def _close(self, keep: bool) -> None:
        refuse_keep(keep)
        run(self._broker.calls.unsubscribe(self._fetcher))


class AsyncRabbitBroker(AsyncBroker):
    """The port for coroutines: what is frequent never waits in a thread, what is rare does."""

    def __init__(self, calls: Calls, place: str) -> None:
        self.calls = calls
        self.runtime = calls.runtime
        self._backend = calls.operating
        self.place = place

    def now(self) -> int:
        return self.runtime.clock()

    async def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt:
        return await run_async(self.calls.publish(command, once))

    async def _subscribe(self, command: Subscribe) -> AsyncRabbitSubscription:
        return AsyncRabbitSubscription(self, command, *await run_async(self.calls.subscribe(command)))

    async def _pull(self, command: Pull) -> AsyncDelivery | None:
        found = await run_async(self.calls.pull(command))
        return None if found is None else AsyncDelivery(*found, self._settle)

    async def _settle(self, delivery: BaseDelivery[Any], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        return await run_async(self.calls.settle(delivery, settlement, runs, wait))

    async def _renew(self, queue: str, lease: int) -> bool:
        return self.calls.renew(queue, lease)

    async def _do(self, command: Command) -> Any:
        return await asyncio.to_thread(self.calls.operating.carry_out, command)

    async def _ask(self, question: Question[T]) -> T:
        return await asyncio.to_thread(question.of, self._backend)

    async def close(self) -> None:
        await asyncio.to_thread(self.runtime.close)


class AsyncRabbitSubscription(AsyncSubscription):
    """A consumer's deliveries, for a coroutine."""

    def __init__(self, broker: AsyncRabbitBroker, command: Subscribe, fetcher: Fetcher, differs: Differences) -> None:
        super().__init__(command, differs)
        self._broker = broker
        self._fetcher = fetcher
        self._batch = command.batch

    async def _receive(self, wait: float | None) -> AsyncDelivery | None:
        found = await run_async(self._broker.calls.receive(self._fetcher, self.consumer, self._batch, wait))
        return None if found is None else AsyncDelivery(*found, self._broker._settle)

    async def _set_credit(self, credit: int) -> None:
        await run_async(self._broker.calls.set_credit(self._fetcher, credit))

    async def _close(self, keep: bool) -> None:
        refuse_keep(keep)
        await run_async(self._broker.calls.unsubscribe(self._fetcher))
