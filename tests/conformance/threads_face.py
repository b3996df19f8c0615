"""An asyncio broker spoken to from threads, so that every body of the suite runs on it too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.port import AsyncBroker, AsyncSubscription, Broker, Options, Publishable, Subscription
from remuda.broker.spectator import Spectator
from remuda.core.effects import Notice, Sending
from remuda.core.info import QueueInfo
from remuda.core.operators import Parked, Selection
from remuda.core.receipts import Declared, Differences, Receipt
from remuda.model.document import Document
from remuda.model.durations import Duration
from remuda.model.options import QueueOptions, Status
from remuda.model.records import Binding, RouterKind

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ThreadsFace:
    """The port for threads, on the port for coroutines."""

    def __init__(self, broker: AsyncBroker, loop: LoopThread) -> None:
        self._broker = broker
        self.loop = loop

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
        return self.loop.run(
            self._broker.publish(
                messages,
                queue=queue,
                unbound=unbound,
                options=options,
                timeout=timeout,
                raise_refusals=raise_refusals,
            )
        )

    def route(self, router: str, messages: Publishable) -> list[Receipt]:
        return self.loop.run(self._broker.route(router, messages))

    def subscribe(
        self, queue: str, *, consumer: str | None = None, batch: int = 1, options: Options = None
    ) -> Subscription:
        work = self._broker.subscribe(queue, consumer=consumer, batch=batch, options=options)
        return _ThreadsSubscription(self.loop.run(work), self.loop)

    def channel(
        self, name: str, topics: Iterable[str], *, batch: int = 1, options: Mapping[str, Any] | None = None
    ) -> Subscription:
        work = self._broker.channel(name, topics, batch=batch, options=options)
        return _ThreadsSubscription(self.loop.run(work), self.loop)

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
        work = self._broker.pull(
            queue, count, consumer=consumer, newest=newest, clear_after=clear_after, timeout=timeout
        )
        return _for_threads(self.loop.run(work), self.loop)

    def renew(self, delivery: Delivery) -> bool:
        return self.loop.run(self._broker.renew(cast(Any, delivery)))

    @property
    def aio(self) -> AsyncBroker:
        return self._broker

    def create_queue(self, name: str, options: Options = None, /, **more: Any) -> Declared:
        return self.loop.run(self._broker.create_queue(name, options, **more))

    def configure_queue(self, name: str, *, who: str | None = None, **changes: Any) -> QueueOptions:
        return self.loop.run(self._broker.configure_queue(name, who=who, **changes))

    def set_status(self, name: str, status: Status | str, *, who: str | None = None) -> None:
        self.loop.run(self._broker.set_status(name, status, who=who))

    def remove_queue(self, name: str, *, who: str | None = None) -> None:
        self.loop.run(self._broker.remove_queue(name, who=who))

    def queue(self, name: str) -> QueueInfo:
        return self.loop.run(self._broker.queue(name))

    def queues(self) -> list[QueueInfo]:
        return self.loop.run(self._broker.queues())

    def clear(self, name: str, lanes: str = "all", *, who: str | None = None) -> int:
        return self.loop.run(self._broker.clear(name, lanes, who=who))

    def reprocess(self, name: str, selection: Selection | None = None, *, who: str | None = None) -> int:
        return self.loop.run(self._broker.reprocess(name, selection, who=who))

    def forget(self, name: str, selection: Selection | None = None, *, who: str | None = None) -> int:
        return self.loop.run(self._broker.forget(name, selection, who=who))

    def parked(self, name: str, selection: Selection | None = None, limit: int = 100) -> list[Parked]:
        return self.loop.run(self._broker.parked(name, selection, limit))

    def create_router(self, name: str, kind: RouterKind | str, bindings: Iterable[Binding]) -> None:
        self.loop.run(self._broker.create_router(name, kind, bindings))

    def remove_router(self, name: str) -> None:
        self.loop.run(self._broker.remove_router(name))

    def message(self, message: str | int) -> Document:
        return self.loop.run(self._broker.message(message))

    def spectate(self) -> Spectator:
        return self.loop.run(self._broker.spectate())

    def on_notice(self, handler: Callable[[Notice], None]) -> None:
        self.loop.run(self._broker.on_notice(handler))

    def close(self) -> None:
        self.loop.run(self._broker.close())

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _ThreadsSubscription:
    def __init__(self, subscription: AsyncSubscription, loop: LoopThread) -> None:
        self._subscription = subscription
        self._loop = loop

    @property
    def consumer(self) -> str:
        return self._subscription.consumer

    @property
    def differs(self) -> Differences:
        return self._subscription.differs

    def receive(self, timeout: Duration | None = None) -> Delivery | None:
        return _for_threads(self._loop.run(self._subscription.receive(timeout)), self._loop)

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self.receive()) is not None:
            yield delivery

    def close(self) -> None:
        self._loop.run(self._subscription.close())

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _for_threads(delivery: AsyncDelivery | None, loop: LoopThread) -> Delivery | None:
    if delivery is None:
        return None
    each = [(offset, 1) for offset in delivery.offsets]
    sending = Sending(
        delivery.queue,
        delivery.consumer,
        delivery.lease,
        each,
        delivery.attempts,
        delivery.deadline,
        delivery.remaining,
    )

    async def settle(verdict: Any, runs: Any, to: str | None, wait: bool) -> int:
        return await delivery._settle(verdict, runs, to, wait)

    return Delivery(
        sending, delivery.messages, lambda _, verdict, runs, to, wait: loop.run(settle(verdict, runs, to, wait))
    )
