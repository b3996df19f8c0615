"""What consumers do: subscribe, pull, answer, leave."""

from __future__ import annotations

from typing import Final

from remuda.core import delivering
from remuda.core.credit import Consumer, Credit
from remuda.core.effects import Dispatch
from remuda.core.leases import Waiter
from remuda.core.queue import Queue
from remuda.core.ranges import MessageRange
from remuda.core.recorder import BLOCK_BITS
from remuda.core.registry import Registry, whereabouts
from remuda.model.commands import (
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
from remuda.model.errors import Conflict, ConsumersFull, NotFound
from remuda.model.notices import NoticeKind
from remuda.model.options import Status
from remuda.model.records import Event, Events
from remuda.model.results import Differences, differences
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State

# Bound to names of the module: they are needed for every message, and looking up a member of an Enum is slow.
_FETCHED: Final = State.FETCHED
_SUCCESS: Final = State.SUCCESS
_COMPLETED: Final = State.COMPLETED
_RETRY: Final = State.RETRY
_ACK: Final = Outcome.ACK
_RETRY_OUTCOME: Final = Outcome.RETRY
_NONE_LEFT: Final = (0, 0)

Runs = list[tuple[int, int]]


class Consuming:
    """Carries out the commands of consumers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._recorder = registry.recorder
        self._joined = 0

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
        self._joined += 1
        credit = self._credit(command)
        queue.join(
            Consumer(
                command.consumer, command.batch, self._joined, command.tag, credit,
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
        elif not command.newest and command.clear_after == "none":
            done = self.pull_plainly(queue, command.consumer, recorder.now, command.count, command.tag)
            if done is not None:
                recorder.keep(done[1], False)
                return done[0]
        until = recorder.now + command.wait
        waiter = Waiter(command.consumer, command.tag, command.count, command.newest, until, command.clear_after)
        served = not queue.waiters and delivering.serve(registry, queue, waiter)
        if not served and command.wait:
            queue.wait(waiter)
        registry.after(queue)
        return recorder.claim(command.tag)

    def cancel_pull(self, command: CancelPull) -> bool:
        queue = self._registry.queues.get(command.queue)
        return queue is not None and queue.waiters.pop(command.tag, None) is not None

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
        record = self.settle_plainly(queue, command.lease, settlement, command.runs, self._recorder.now)
        if record is not None:
            self._recorder.keep(record, queue.persistent)
            return record.rows[0].count
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

    # Fast paths for the usual case: one run of messages, and no special option of the queue or its consumers. Each
    # returns the record for its caller to keep; or None, and then nothing has changed and the general path is taken.

    def pull_plainly(
        self, queue: Queue, consumer: str, now: int, count: int, tag: int
    ) -> tuple[Dispatch, Events] | None:
        recorder = self._recorder
        if now < recorder.now:
            now = recorder.now
        if (
            not queue.plain_out
            or queue.waiters
            or queue.consumers
            or queue.attempts.size
            or queue.arrivals.size
            or queue.delayed.soonest <= now
            or queue.watched
            or recorder.wants_notices
        ):
            return None
        run = queue.ready.take_run(count, now)
        if run is None:
            return None
        if recorder.rows:
            recorder.at(now)
        else:
            recorder.now = now
        return self.send_plainly(queue, consumer, now, tag, run)

    def send_plainly(
        self, queue: Queue, consumer: str, now: int, tag: int, run: tuple[int, int, int, int]
    ) -> tuple[Dispatch, Events]:
        """Deliver a run, which was taken out of its lane, to the consumer that pulls."""
        recorder, ready, counts = self._recorder, queue.ready, queue.counts
        token = recorder.next_position
        recorder.next_position = token + 1
        counts[_FETCHED] = counts.get(_FETCHED, 0) + run[1]
        deadline = now + queue.options.acknowledge_timeout
        left = ready.by_rank if ready.size else _NONE_LEFT
        sent = queue.send(queue.name, run, token, consumer, tag, now, deadline, left)
        if deadline < queue.wake:
            self._registry.plan(queue)
        return sent

    def settle_plainly(
        self, queue: Queue, token: int, settlement: Settlement, runs: Runs | None, now: int
    ) -> Events | None:
        """Settle one run of messages that is acknowledged or to be retried, as most are."""
        recorder, outcome = self._recorder, settlement.outcome
        if now < recorder.now:
            now = recorder.now
        if (
            not queue.plain_out
            or queue.watched
            or queue.consumers
            or (queue.waiters and queue.delayed.soonest <= now)
            or recorder.wants_notices
        ):
            return None
        if outcome is _ACK:
            return self._complete_plainly(queue, token, settlement.consumer, runs, now)
        if outcome is _RETRY_OUTCOME:
            return self._retry_plainly(queue, token, settlement, runs, now)
        return None

    def _complete_plainly(
        self, queue: Queue, token: int, consumer: str | None, runs: Runs | None, now: int
    ) -> Events | None:
        recorder, counts = self._recorder, queue.counts
        at = recorder.next_position
        record = queue.complete(queue.name, token, consumer, runs, at, now)
        if record is None:
            return None
        if recorder.rows:
            recorder.at(now)
        else:
            recorder.now = now
        recorder.next_position = at + 2
        done = record.rows[0]
        first, count = done.first, done.count
        counts[_SUCCESS] = counts.get(_SUCCESS, 0) + count
        counts[_COMPLETED] = counts.get(_COMPLETED, 0) + count
        if queue.topic_counts.size or queue.id_of.size or queue.arrivals.size or queue.sizes.size:
            queue._free(first, count)
        if count == 1:
            block = first >> BLOCK_BITS
            if now > recorder.last_settled.get(block, 0):
                recorder.last_settled[block] = now
        else:
            recorder.note_block(first, count, now)
        return record

    def _retry_plainly(
        self, queue: Queue, token: int, settlement: Settlement, runs: Runs | None, now: int
    ) -> Events | None:
        """Delay messages that failed until their next attempt."""
        delay = settlement.delay
        if not delay or settlement.counted is False or queue.options.delivery_limit:
            return None
        piece = queue.land(token, settlement.consumer, runs)
        if piece is None:
            return None
        recorder, counts = self._recorder, queue.counts
        recorder.at(now)
        first, count = piece.first, piece.count
        counts[_RETRY] = counts.get(_RETRY, 0) + count
        due, front, reason = now + delay, bool(settlement.front), settlement.reason or "negative answer"
        queue.delayed.add(
            MessageRange(
                first, count, _RETRY, piece.deadline, piece.priority, piece.attempt, -1, due, front, reason, now,
                True,
            )
        )  # fmt: skip
        if due < queue.wake or piece.deadline < queue.wake:
            self._registry.plan(queue)
        at = recorder.next_position
        recorder.next_position = at + 1
        failed = Event(
            queue.name, _RETRY, first, count, settlement.consumer, piece.attempt, reason, due, front,
            detail=settlement.detail,
        )  # fmt: skip
        return Events(at, now, [failed])
