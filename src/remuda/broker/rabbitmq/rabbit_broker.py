"""The broker on RabbitMQ for threads."""

from __future__ import annotations

import concurrent.futures
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from remuda.amqp.errors import ChannelClosed
from remuda.broker.delivery import BaseDelivery, Delivery, Runs
from remuda.broker.embedded.clock import Clock
from remuda.broker.options import BrokerOptions
from remuda.broker.port import Broker, Subscription
from remuda.broker.rabbitmq.consuming.fetcher import GATHER, LINGER, Arrival, Fetcher
from remuda.broker.rabbitmq.operator_verbs import Operating
from remuda.broker.rabbitmq.rabbit_runtime import Runtime
from remuda.broker.rabbitmq.record_sinks import RecordSink
from remuda.broker.rabbitmq.shared_state.schedule_runs import ScheduleRuns
from remuda.broker.rabbitmq.support import refuse_keep, refuse_note, refuse_once
from remuda.model.errors import ConsumersFull, Unsupported
from remuda.model.operations.commands import Clear, Command, Publish, Pull, Subscribe
from remuda.model.operations.results import Differences, Receipt, differences
from remuda.model.queues.notices import NoticeKind
from remuda.model.queues.options import Status
from remuda.model.settlement import Settlement
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.urls import parse_url

if TYPE_CHECKING:
    from remuda.broker.rabbitmq.async_rabbit_broker import AsyncRabbitBroker

_ACCESS_REFUSED: Final = 403


def open_rabbit_broker(
    url: str, *, clock: Clock | None = None, records: RecordSink | None = None, **options: Any
) -> RabbitBroker:
    """Open the broker at `amqp://user:password@host1,host2/vhost`."""
    broker = RabbitBroker(Runtime(url, BrokerOptions.parse(**options), clock, records).open())
    broker.place = str(parse_url(url))
    return broker


class RabbitBroker(Broker):
    """The port for threads, on a `Runtime`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._backend = self.operating = Operating(runtime)
        self.runs = ScheduleRuns(runtime.definitions, runtime.clock)
        self._aio: AsyncRabbitBroker | None = None

    def now(self) -> int:
        return self.runtime.clock()

    @property
    def aio(self) -> AsyncRabbitBroker:
        """The same broker for coroutines."""
        if self._aio is None:
            from remuda.broker.rabbitmq.async_rabbit_broker import AsyncRabbitBroker

            self._aio = AsyncRabbitBroker(self)
        return self._aio

    # Publishing

    def _publish(self, command: Publish, once: str | None, timeout: Duration | None) -> Receipt:
        runtime = self.runtime
        if command.exchange is not None:
            return runtime.routers.route(command)
        refuse_once(once)
        refuse_note(command.note)
        runtime.check_open()
        publishing = runtime.publishing
        differs: dict[str, Differences] = {}
        if command.options is not None or publishing.missing(command):
            differs = runtime.queues.ensure_all(publishing.needed(command), command.options)
            publishing.prepare(command)
        return publishing.submit(command, differs).result()

    # Consuming

    def _subscribe(self, command: Subscribe) -> RabbitSubscription:
        return RabbitSubscription(self, command, *self.begin(command))

    def begin(self, command: Subscribe) -> tuple[Fetcher, Differences]:
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

    def _pull(self, command: Pull) -> Delivery | None:
        found = self.fetch(command)
        return None if found is None else Delivery(*found, self._settle)

    def fetch(self, command: Pull) -> tuple[Any, Any] | None:
        """What a pull gets; waits as long as it may."""
        self.check_pull(command)
        runtime = self.runtime
        runtime.queues.ensure(command.queue, status=Status.NOT_INITIALIZED)
        fetcher = runtime.consumers.fetcher(command.queue)
        if not command.wait:
            found = self._fetch(command, fetcher)
        else:
            with runtime.consumers.waiting_pull(command.queue):
                found = self._fetch(command, fetcher)
        if command.clear_after != "none":
            self.operating.clear(Clear(command.queue, command.clear_after))
        return found

    def _fetch(self, command: Pull, fetcher: Fetcher) -> tuple[Any, Any] | None:
        runtime = self.runtime
        deadline = time.monotonic() + command.wait / SECOND
        found = None
        while True:
            if not runtime.consumers.is_giving(command.queue):
                arrived: Arrival = []
            elif not command.wait:
                arrived = runtime.consumers.get(fetcher, command.count)
            else:
                arrived = self._await(fetcher, command.count, deadline)
            if arrived:
                assert fetcher.channel is not None
                found = runtime.consuming.hand_out(command.queue, command.consumer, fetcher.channel, fetcher, arrived)
            left = deadline - time.monotonic()
            if found is not None or (left <= 0 and not (arrived and not command.wait)):
                break
            if fetcher.closed:
                return None
            if not arrived:
                time.sleep(min(max(left, 0), 0.02))
        return found

    def check_pull(self, command: Pull) -> None:
        if command.newest:
            raise Unsupported("RabbitMQ delivers the oldest message of a queue first, never the newest", "newest")

    def _renew(self, queue: str, lease: int) -> bool:
        runtime = self.runtime
        known = runtime.definitions.queues.get(queue)
        return known is not None and runtime.consuming.held.renew(
            lease, runtime.clock() + known.options.acknowledge_timeout
        )

    # Life

    def close(self) -> None:
        self.runtime.close()

    # Executing commands

    def _do(self, command: Command) -> Any:
        return self.operating.carry_out(command)

    def settle(self, delivery: BaseDelivery[Any], settlement: Settlement, runs: Runs | None) -> Future[int] | int:
        """Answer; returns a future if something must be published first. Waits only if a queue must be created."""
        if delivery.lease is None:
            return 0
        self.runtime.check_open()
        work = self.runtime.consuming.settle(delivery.lease, settlement, runs)
        return work if isinstance(work, int) else work()

    def _settle(self, delivery: BaseDelivery[int], settlement: Settlement, runs: Runs | None, wait: bool) -> int:
        done = self.settle(delivery, settlement, runs)
        if isinstance(done, int):
            return done
        if not wait:
            return len(delivery) if runs is None else sum(count for _, count in runs)
        return done.result()

    def _await(self, fetcher: Fetcher, count: int, deadline: float) -> Arrival:
        future = fetcher.ask(count)
        try:
            if fetcher.must_start:
                self.runtime.consumers.start(fetcher)
            arrived = future.result(max(deadline - time.monotonic(), 0))
            if len(arrived) < count and arrived:
                time.sleep(GATHER)
                arrived += fetcher.take(count - len(arrived))
            return arrived
        except concurrent.futures.TimeoutError:
            return [] if fetcher.withdraw(future) else future.result(5)
        except BaseException:
            if not fetcher.withdraw(future):
                self._return(fetcher, future.result(5))
            raise

    def _return(self, fetcher: Fetcher, arrived: Arrival) -> None:
        """Keep what was sent to a caller that is gone for the next one."""
        fetcher.answered(len(arrived))
        if arrived and not fetcher.hold_again(arrived) and fetcher.channel is not None:
            self.runtime.consuming.give_back(fetcher.queue, fetcher.channel, arrived)


def _full(queue: str, count: int) -> ConsumersFull:
    return ConsumersFull(
        f"queue {queue!r} has {count} consumers, its client_limit; close one of them or raise the limit"
    )


class RabbitSubscription(Subscription):
    """A consumer's deliveries, for a thread."""

    def __init__(self, broker: RabbitBroker, command: Subscribe, fetcher: Fetcher, differs: Differences) -> None:
        super().__init__(command, differs)
        self._broker = broker
        self._fetcher = fetcher
        self._batch = command.batch

    def _receive(self, wait: float | None) -> Delivery | None:
        deadline = None if wait is None else time.monotonic() + wait
        fetcher = self._fetcher
        while not fetcher.closed:
            future = fetcher.ask(self._batch)
            try:
                arrived = future.result(None if deadline is None else max(deadline - time.monotonic(), 0))
            except concurrent.futures.TimeoutError:
                if fetcher.withdraw(future):
                    return None
                arrived = future.result(5)
            if len(arrived) < self._batch and arrived and not fetcher.closed:
                time.sleep(LINGER)
                arrived = arrived + fetcher.take(self._batch - len(arrived))
            if not arrived:
                continue
            assert fetcher.channel is not None
            consuming = self._broker.runtime.consuming
            found = consuming.hand_out(self.queue, self.consumer, fetcher.channel, fetcher, arrived)
            if found is not None:
                return Delivery(*found, self._broker._settle)
        return None

    def _set_credit(self, credit: int) -> None:
        self._fetcher.fixed = credit
        self._broker.runtime.consumers.start(self._fetcher)

    def _close(self, keep: bool) -> None:
        refuse_keep(keep)
        if not self._broker.runtime.closed:
            self._broker.runtime.unsubscribe(self._fetcher)
