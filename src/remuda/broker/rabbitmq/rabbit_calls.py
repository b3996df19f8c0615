"""What publishers and consumers ask of RabbitMQ, written once for threads and for coroutines.

Each call is a generator. It yields what must be waited for; `run` and `run_async` wait, each in its own way, and send
back what came of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from remuda.amqp.errors import ChannelClosed
from remuda.broker.delivery import BaseDelivery, Runs
from remuda.broker.rabbitmq.consuming.fetcher import GATHER, LINGER, Arrival, Fetcher
from remuda.broker.rabbitmq.operator_verbs import Operating
from remuda.broker.rabbitmq.rabbit_runtime import Runtime
from remuda.broker.rabbitmq.support import refuse_note, refuse_once
from remuda.core.effects import Dispatch
from remuda.model.errors import ConsumersFull, Unsupported
from remuda.model.messages import Messages
from remuda.model.operations.commands import Clear, Publish, Pull, Subscribe
from remuda.model.operations.results import Differences, Receipt, differences
from remuda.model.queues.notices import NoticeKind
from remuda.model.queues.options import Status
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND
from remuda.steps import drive, drive_async

_ACCESS_REFUSED: Final = 403
_LOOK: Final = 0.02
"""Seconds after which a pull looks again at a queue that delivers nothing at present."""

T = TypeVar("T")
Found: TypeAlias = tuple[Dispatch, Messages]


class Work(NamedTuple):
    """Something that waits for RabbitMQ by itself; coroutines have it done in a thread."""

    do: Callable[[], Any]


class Reply(NamedTuple):
    """What a future comes to; None if it has come to nothing by the deadline."""

    future: Future[Any]
    deadline: float | None = None

    @property
    def left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0)


class Pause(NamedTuple):
    """Some seconds."""

    seconds: float


Wait: TypeAlias = Work | Reply | Pause
Call: TypeAlias = Generator[Wait, Any, T]


def run(call: Call[T]) -> T:
    """A call in this thread. What happens while it waits, such as Ctrl-C, is raised where it waits."""
    return drive(call, _wait)


async def run_async(call: Call[T]) -> T:
    """A call in a coroutine. If that is cancelled, what it waited for goes on without it."""
    return await drive_async(call, _wait_async)


def _wait(wait: Wait) -> Any:
    if isinstance(wait, Work):
        return wait.do()
    if isinstance(wait, Pause):
        return time.sleep(wait.seconds)
    try:
        return wait.future.result(wait.left)
    except TimeoutError:
        if wait.future.done():
            raise
        return None


async def _wait_async(wait: Wait) -> Any:
    if isinstance(wait, Work):
        return await asyncio.to_thread(wait.do)
    if isinstance(wait, Pause):
        return await asyncio.sleep(wait.seconds)
    waiting = asyncio.wrap_future(wait.future)
    if wait.deadline is None:
        return await asyncio.shield(waiting)
    await asyncio.wait({waiting}, timeout=wait.left)
    return waiting.result() if waiting.done() else None


class Calls:
    """The calls, on a `Runtime`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.operating = Operating(runtime)

    def publish(self, command: Publish, once: str | None) -> Call[Receipt]:
        """If the caller is gone, its messages are published all the same."""
        runtime = self.runtime
        if command.exchange is not None:
            routed: Receipt = yield Work(partial(runtime.routers.route, command))
            return routed
        refuse_once(once)
        refuse_note(command.note)
        runtime.check_open()
        publishing = runtime.publishing
        differs: dict[str, Differences] = {}
        if command.options is not None or publishing.missing(command):
            differs = yield Work(partial(runtime.queues.ensure_all, publishing.needed(command), command.options))
            yield Work(partial(publishing.prepare, command))
        receipt: Receipt = yield Reply(publishing.submit(command, differs))
        return receipt

    def subscribe(self, command: Subscribe) -> Call[tuple[Fetcher, Differences]]:
        started: tuple[Fetcher, Differences] = yield Work(partial(self._subscribe, command))
        return started

    def _subscribe(self, command: Subscribe) -> tuple[Fetcher, Differences]:
        """Start a consumer of a queue, which is created if necessary."""
        runtime = self.runtime
        if command.group is not None:
            raise Unsupported(
                "RabbitMQ counts what each consumer holds by itself, so consumers cannot share one credit; leave "
                "group= out. Nothing was changed",
                "group",
            )
        if command.priority:
            raise Unsupported(
                "on RabbitMQ all consumers of a queue have the same priority; leave priority= out. Nothing was changed",
                "priority",
            )
        existed = command.queue in runtime.definitions.queues
        typed = command.options is not None and "type" in command.options
        known = runtime.queues.ensure(
            command.queue, command.options, Status.RUNNING if typed else Status.NOT_INITIALIZED
        )
        limit = known.options.client_limit
        if limit:
            # RabbitMQ does not know those that wait here for the queue to deliver.
            seen = runtime.topology.look(command.queue)
            count = max(seen.consumer_count if seen is not None else 0, runtime.consumers.count(command.queue))
            if count >= limit:
                raise _full(command.queue, count)
        credit = max(command.credit, command.batch)
        if known.options.acknowledge != "wait":
            credit = max(credit, 1000)
        fetcher = runtime.consumers.subscribe(command.queue, command.consumer, credit, exclusive=limit == 1)
        try:
            if runtime.consumers.is_giving(command.queue):
                runtime.consumers.start(fetcher)
            else:
                fetcher.pause()
        except ChannelClosed as closed:
            runtime.unsubscribe(fetcher)
            raise (_full(command.queue, 1) if closed.code == _ACCESS_REFUSED else closed) from None
        except BaseException:
            runtime.unsubscribe(fetcher)
            raise
        runtime.announce(NoticeKind.CONSUMER_SUBSCRIBED, command.queue, command.consumer)
        return fetcher, differences(command.options, known.options) if existed else {}

    def receive(self, fetcher: Fetcher, consumer: str, batch: int, wait: float | None) -> Call[Found | None]:
        """A subscription's next delivery."""
        deadline = None if wait is None else time.monotonic() + wait
        while not fetcher.closed:
            arrived = yield from self._arrive(fetcher, batch, deadline, LINGER)
            if arrived:
                if (found := self._hand_out(fetcher, consumer, arrived)) is not None:
                    return found
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        return None

    def pull(self, command: Pull) -> Call[Found | None]:
        if command.newest:
            raise Unsupported("RabbitMQ delivers the oldest message of a queue first, never the newest", "newest")
        runtime, queue = self.runtime, command.queue
        runtime.check_open()
        if not runtime.topology.knows(queue):
            yield Work(partial(runtime.queues.ensure, queue, status=Status.NOT_INITIALIZED))
        fetcher = runtime.consumers.fetcher(queue)
        if fetcher.alone and not command.wait:
            raise Unsupported(
                f"RabbitMQ gives the messages of {queue!r} to its single active consumer; subscribe, or pull with a "
                "timeout. Nothing was changed",
                "single_active_consumer",
            )
        if command.wait:
            with runtime.consumers.waiting_pull(queue):
                found = yield from self._wait_for(command, fetcher)
        else:
            found = yield Work(partial(self._take, command, fetcher))
        if command.clear_after != "none":
            yield Work(partial(self.operating.clear, Clear(queue, command.clear_after)))
        return found

    def _take(self, command: Pull, fetcher: Fetcher) -> Found | None:
        """What is there now."""
        consumers = self.runtime.consumers
        while consumers.is_giving(command.queue) and (arrived := consumers.get(fetcher, command.count)):
            if (found := self._hand_out(fetcher, command.consumer, arrived)) is not None:
                return found
        return None

    def _wait_for(self, command: Pull, fetcher: Fetcher) -> Call[Found | None]:
        deadline = time.monotonic() + command.wait / SECOND
        while True:
            arrived: Arrival = []
            if self.runtime.consumers.is_giving(command.queue):
                arrived = yield from self._arrive(fetcher, command.count, deadline, GATHER)
            if arrived and (found := self._hand_out(fetcher, command.consumer, arrived)) is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0 or fetcher.closed:
                return None
            if not arrived:
                yield Pause(min(left, _LOOK))

    def _arrive(self, fetcher: Fetcher, count: int, deadline: float | None, linger: float) -> Call[Arrival]:
        """Up to so many deliveries: after the first, a moment for the others. If the caller is gone, what was sent is
        kept for the next one."""
        future = fetcher.ask(count)
        try:
            if fetcher.fixed is None and fetcher.must_start:
                yield Work(partial(self.runtime.consumers.start, fetcher))
            arrived: Arrival | None = yield Reply(future, deadline)
        except BaseException:
            if not fetcher.withdraw(future):
                self._return(fetcher, future.result(5))
            raise
        if arrived is None:
            arrived = [] if fetcher.withdraw(future) else future.result(5)
        if 0 < len(arrived) < count and not fetcher.closed:
            try:
                yield Pause(linger)
            except BaseException:
                self._return(fetcher, arrived)
                raise
            arrived = arrived + fetcher.take(count - len(arrived))
        return arrived

    def _return(self, fetcher: Fetcher, arrived: Arrival) -> None:
        fetcher.answered(len(arrived))
        if arrived and not fetcher.hold_again(arrived) and fetcher.channel is not None:
            self.runtime.consuming.give_back(fetcher.queue, fetcher.channel, arrived)

    def _hand_out(self, fetcher: Fetcher, consumer: str, arrived: Arrival) -> Found | None:
        assert fetcher.channel is not None
        return self.runtime.consuming.hand_out(fetcher.queue, consumer, fetcher.channel, fetcher, arrived)

    def settle(self, delivery: BaseDelivery[Any], settlement: Settlement, runs: Runs | None, wait: bool) -> Call[int]:
        """An answer. It waits if a queue must be created or, with `wait`, if something must be published first."""
        if delivery.lease is None:
            return 0
        self.runtime.check_open()
        work = self.runtime.consuming.settle(delivery.lease, settlement, runs)
        if isinstance(work, int):
            return work
        done: Future[int] = yield Work(work)
        if not wait:
            return len(delivery) if runs is None else sum(count for _, count in runs)
        settled: int = yield Reply(done)
        return settled

    def renew(self, queue: str, lease: int) -> bool:
        runtime = self.runtime
        known = runtime.definitions.queues.get(queue)
        return known is not None and runtime.consuming.held.renew(
            lease, runtime.clock() + known.options.acknowledge_timeout
        )

    def set_credit(self, fetcher: Fetcher, credit: int) -> Call[None]:
        fetcher.fixed = credit
        yield Work(partial(self.runtime.consumers.start, fetcher))

    def unsubscribe(self, fetcher: Fetcher) -> Call[None]:
        if not self.runtime.closed:
            yield Work(partial(self.runtime.unsubscribe, fetcher))


def _full(queue: str, count: int) -> ConsumersFull:
    return ConsumersFull(
        f"queue {queue!r} has {count} consumers, its client_limit; close one of them or raise the limit"
    )
