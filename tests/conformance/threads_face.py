"""An asyncio broker spoken to from threads, so that every body of the suite runs on it too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar, cast

from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.port import AsyncBroker, Broker
from remuda.core.effects import Dispatch
from remuda.model.values.durations import Duration

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
    """The port for threads, on the port for coroutines: every verb is run on the loop, and its result waited for."""

    def __init__(self, broker: AsyncBroker, loop: LoopThread) -> None:
        self._broker = broker
        self.loop = loop

    @property
    def aio(self) -> AsyncBroker:
        return self._broker

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._broker, verb)

        def call(*args: Any, **options: Any) -> Any:
            result = self.loop.run(method(*args, **options))
            if hasattr(result, "receive"):
                return _ThreadsSubscription(result, self.loop)
            return _for_threads(result, self.loop) if isinstance(result, AsyncDelivery) else result

        return call

    def __enter__(self) -> Broker:
        return cast(Broker, self)

    def __exit__(self, *exc: object) -> None:
        self.loop.run(self._broker.close())


class _ThreadsSubscription:
    def __init__(self, subscription: Any, loop: LoopThread) -> None:
        self._subscription = subscription
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subscription, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *args: self._loop.run(found(*args))

    def receive(self, timeout: Duration | None = None) -> Delivery | None:
        return _for_threads(self._loop.run(self._subscription.receive(timeout)), self._loop)

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self.receive()) is not None:
            yield delivery

    def __enter__(self) -> _ThreadsSubscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.run(self._subscription.close())


def _for_threads(delivery: AsyncDelivery | None, loop: LoopThread) -> Delivery | None:
    if delivery is None:
        return None
    dispatch = Dispatch(
        delivery.queue,
        delivery.consumer,
        0,
        delivery.lease,
        [(offset, 1) for offset in delivery.offsets],
        delivery.attempts,
        delivery.deadline,
        delivery.remaining,
        tuple(delivery.redelivered),
    )

    async def settle(settlement: Any, runs: Any, wait: bool) -> int:
        settled: int = await delivery._settle(delivery, settlement, runs, wait)
        return settled

    return Delivery(
        dispatch,
        delivery.messages,
        lambda _, settlement, runs, wait: loop.run(settle(settlement, runs, wait)),
    )
