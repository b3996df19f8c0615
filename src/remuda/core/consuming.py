"""What consumers do: subscribe, pull, answer, leave."""

from __future__ import annotations

from remuda.core import delivering
from remuda.core.effects import Dispatch
from remuda.core.queues.credit import Consumer, Credit
from remuda.core.queues.leases import Waiter
from remuda.core.registry import Registry, whereabouts
from remuda.model.errors import Conflict, ConsumersFull, NotFound
from remuda.model.operations.commands import (
    Abandon,
    CancelPull,
    HandOver,
    Pull,
    Reclaim,
    Renew,
    SetCredit,
    Settle,
    Subscribe,
    Unsubscribe,
)
from remuda.model.operations.results import Differences, differences
from remuda.model.queues.notices import NoticeKind
from remuda.model.queues.options import Status

Runs = list[tuple[int, int]]


class Consuming:
    """Carries out the commands of consumers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._recorder = registry.recorder
        self.joined = 0

    def subscribe(self, command: Subscribe) -> Differences:
        registry, named = self._registry, command.options
        queue = registry.queues.get(command.queue)
        if queue is None:
            registry.check_creation(command.queue)
            status = Status.RUNNING if named is not None and "type" in named else Status.NOT_INITIALIZED
            queue = registry.create(command.queue, registry.options(named), status, named or ())
        elif command.consumer in queue.consumers:
            raise Conflict(f"queue {queue.name!r} already has a consumer named {command.consumer!r}")
        elif queue.status is Status.NOT_INITIALIZED and (queue.size or (named is not None and "type" in named)):
            # One that holds messages was recreated after damage to the log: any subscriber gets them.
            registry.initialize(queue, named)
        limit = queue.options.client_limit
        if limit and len(queue.consumers) >= limit:
            raise ConsumersFull(
                f"queue {queue.name!r} has {len(queue.consumers)} consumers, its client_limit; "
                "close one of them or raise the limit"
            )
        self.joined += 1
        credit = self._credit(command)
        queue.join(
            Consumer(
                command.consumer, command.batch, self.joined, command.tag, credit,
                group=command.group, priority=command.priority,
            )
        )  # fmt: skip
        self._recorder.notice(NoticeKind.CONSUMER_SUBSCRIBED, queue, consumer=command.consumer)
        differs = differences(named, queue.options)
        registry.after(queue)
        return differs

    def _credit(self, command: Subscribe) -> Credit:
        if command.group is None:
            return Credit(command.credit)
        shared = self._registry.credits.get(command.group)
        if shared is None or not shared.members:
            shared = self._registry.credits[command.group] = Credit(command.credit)
        return shared

    def set_credit(self, command: SetCredit) -> None:
        queue = self._registry.queue(command.queue)
        consumer = queue.consumers.get(command.consumer)
        if consumer is None:
            raise NotFound(f"queue {command.queue!r} has no consumer {command.consumer!r}")
        consumer.credit.limit = command.credit
        for name, member in consumer.credit.members:
            if name in self._registry.queues:
                self._registry.queues[name].offer(member)
                self._registry.touch(name)
        self._registry.settle_down()

    def unsubscribe(self, command: Unsubscribe) -> None:
        queue = self._registry.queues.get(command.queue)
        consumer = queue.consumers.get(command.consumer) if queue is not None else None
        if queue is None or consumer is None:
            return
        queue.leave(command.consumer)
        if not consumer.credit.members and consumer.group is not None:
            self._registry.credits.pop(consumer.group, None)
        if command.keep:
            queue.keep(command.consumer)
        else:
            delivering.lose(self._registry, queue, command.consumer, command.begun)
        self._recorder.notice(NoticeKind.CONSUMER_UNSUBSCRIBED, queue, consumer=command.consumer)
        self._registry.after(queue)

    def pull(self, command: Pull) -> Dispatch | None:
        """The messages that can be had at once. None if there are none; then the request waits, if it is to wait."""
        registry, recorder = self._registry, self._recorder
        queue = registry.queues.get(command.queue)
        if queue is None:
            registry.check_creation(command.queue)
            queue = registry.create(command.queue, registry.options(None), Status.NOT_INITIALIZED)
        elif queue.status is Status.NOT_INITIALIZED and queue.size:
            registry.initialize(queue, None)
        until = recorder.now + command.wait
        if command.newest and queue.keyed is not None:
            raise Conflict(
                f"queue {queue.name!r} has rules per key, and a pull takes its messages in their order; "
                "leave newest out"
            )
        waiter = Waiter(command.consumer, command.tag, command.count, command.newest, until, command.clear_after)
        served = not queue.waiters and delivering.serve(registry, queue, waiter)
        if not served and command.wait:
            queue.wait(waiter)
        registry.after(queue)
        return recorder.claim(command.tag)

    def cancel_pull(self, command: CancelPull) -> bool:
        queue = self._registry.queues.get(command.queue)
        return queue is not None and queue.stop_waiting(command.tag)

    def hand_over(self, command: HandOver) -> list[tuple[int, int]]:
        queue = self._registry.queues.get(command.queue)
        if queue is None:
            return []
        lease = queue.leases.get(command.lease)
        if lease is None:
            lease = queue.settled_ahead.get(command.lease)
            if lease is None or command.consumer not in lease.awaited:
                return []
        if lease.deadline <= self._recorder.now or command.consumer not in lease.silent:
            return []
        return delivering.hand_over(self._registry, queue, lease, command.consumer)

    def settle(self, command: Settle) -> int:
        queue = self._registry.queues.get(command.queue)
        if queue is None:
            self._recorder.late_answers += 1
            return 0
        settlement = command.settlement
        settled = delivering.settle(self._registry, queue, command.lease, settlement, command.runs)
        self._registry.after(queue)
        return settled

    def renew(self, command: Renew) -> bool:
        queue = self._registry.queues.get(command.queue)
        held = queue.leases.get(command.lease) if queue is not None else None
        if queue is None or held is None:
            return False
        queue.extend(held, self._recorder.now + queue.options.acknowledge_timeout)
        self._registry.plan(queue)
        return True

    def reclaim(self, command: Reclaim) -> int:
        queue = self._registry.queues.get(command.queue)
        if queue is None:
            return 0
        runs = command.runs
        own = delivering.reclaim(self._registry, queue, command.lease, command.consumer, runs, command.pulled)
        return own or -sum(size for first, count in runs for _, _, size, _ in whereabouts(queue, first, count))

    def abandon(self, command: Abandon) -> None:
        queue = self._registry.queues.get(command.queue)
        if queue is not None:
            delivering.abandon(self._registry, queue, command.lease, command.consumer, command.begun)
            self._registry.after(queue)
