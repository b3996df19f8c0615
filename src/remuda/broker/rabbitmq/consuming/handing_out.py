"""Hands RabbitMQ's deliveries to consumers, without those that are expired, early or invalid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, cast

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.broker.rabbitmq.consuming import settler
from remuda.broker.rabbitmq.consuming.delivery_groups import (
    Group,
    Runs,
    as_messages,
    count_of,
    decode_all,
    deliveries_of,
    items_of,
    numbers_of,
    read_groups,
)
from remuda.broker.rabbitmq.consuming.fetcher import FRONT, Fetcher
from remuda.broker.rabbitmq.consuming.held_deliveries import HeldDeliveries, HeldDelivery
from remuda.broker.rabbitmq.consuming.settler import Plan, Settler
from remuda.broker.rabbitmq.publishing import codec
from remuda.broker.rabbitmq.publishing.codec import Incoming
from remuda.broker.rabbitmq.record_sinks import NoRecords, RecordSink
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.message_ids import runs_of
from remuda.broker.rabbitmq.shared_state.queue_definitions import QueueDefinition
from remuda.core.effects import Dispatch
from remuda.model.errors import NotFound, QueueNotAccepting
from remuda.model.messages import Messages
from remuda.model.queues.notices import Notice, NoticeKind
from remuda.model.queues.options import Acknowledge, QueueOptions, Status
from remuda.model.records import Event, Events
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State

_ACCEPTING: Final = frozenset({Status.RUNNING, Status.ONLY_PUBLISH, Status.NOT_INITIALIZED})
LATE: Final = "no answer in time"


class Consuming:
    """Hands deliveries out and takes answers back."""

    def __init__(
        self,
        definitions: Definitions,
        settler: Settler,
        clock: Callable[[], int],
        records: RecordSink,
        notices: NoticeBoard,
        background: Callable[[Callable[[], None]], None],
    ) -> None:
        self.held = HeldDeliveries()
        self.counts: dict[str, dict[State, int]] = {}
        """By queue, how many messages entered each state, as far as this process saw it."""
        self._definitions = definitions
        self._settler = settler
        self._clock = clock
        self.records = records
        self._notices = notices
        self._background = background

    def hand_out(
        self,
        queue: str,
        consumer: str,
        channel: Channel,
        fetcher: Fetcher | None,
        deliveries: Sequence[Delivery],
        tag: int = 0,
    ) -> tuple[Dispatch, Messages] | None:
        """What a consumer gets of these deliveries; None if nothing is left. Never waits."""
        now = self._clock()
        definition = self._definitions.queues.get(queue)
        groups = self._fit(queue, definition, channel, fetcher, read_groups(deliveries, now), now)
        if not groups:
            return None
        options = definition.options if definition is not None else None
        silent = options is not None and options.acknowledge is Acknowledge.NONE
        deadline = now + (options.acknowledge_timeout if options is not None else 0)
        lease = None
        if silent:
            channel.ack(deliveries_of(groups))
            if fetcher is not None:
                fetcher.answered(count_of(groups))
        else:
            held = HeldDelivery(queue, consumer, channel, fetcher, groups, now, deadline)
            self.held.add(held)
            lease = held.lease
        self._record_fetched(queue, consumer, groups, silent, now)
        return _dispatch(queue, consumer, tag, lease, groups, deadline, fetcher), as_messages(groups)

    def settle(
        self, lease: int, settlement: Settlement, runs: Sequence[tuple[int, int]] | None
    ) -> Callable[[], Future[int]] | int:
        """Answer. Returns how many were settled or, if something must be published first, the function that does it."""
        whole = settlement.whole and settlement.to is not None
        target = self._definitions.queues.get(settlement.to or "")
        if whole and target is not None and target.status not in _ACCEPTING:
            raise QueueNotAccepting(f"queue {settlement.to!r} is {target.status.value} and takes no messages")
        found = self.held.take(lease, runs)
        if found is None:
            return 0
        held, groups = found
        now = self._clock()
        definition = self._definitions.queues.get(held.queue)
        if definition is None:
            raise NotFound(f"queue {held.queue!r} was removed, and its messages with it")
        if self._notices.wanted:
            done = (held.queue, now, settlement.consumer, settlement.outcome.value)
            self._post(NoticeKind.ACKNOWLEDGED, numbers_of(groups), *done)
        if settlement.outcome is Outcome.ACK:
            self._record_succeeded(held.queue, groups, settlement.consumer, now)
            return held.channel.ack(deliveries_of(groups))
        items = items_of(groups)
        plan = settler.plan(held, items, settlement, definition, now)
        if not whole:
            self.record(plan.events, now)

        def carry_out() -> Future[int]:
            if not self._settler.is_ready(plan):
                self._settler.prepare(plan)
            if not whole:
                return self._settler.carry_out(plan, held.channel, items, held.fetcher)
            hold = partial(self.held.put_back, held, groups)
            settled = self._settler.carry_out(plan, held.channel, items, held.fetcher, hold)

            def arrived(done: Future[int]) -> None:
                if done.exception() is None:
                    self.record(plan.events, now)

            settled.add_done_callback(arrived)
            return settled

        return carry_out

    def give_back(self, queue: str, channel: Channel, deliveries: Sequence[Delivery]) -> Future[int] | None:
        """Put deliveries that no consumer got back into the queue, as if they had never left it."""
        for delivery in deliveries:
            if delivery.redelivered and delivery.message_count == FRONT:
                channel.nack(delivery)  # back to its place, which is the front
        deliveries = [delivery for delivery in deliveries if delivery.message_count != FRONT]
        if not deliveries:
            return None
        now = self._clock()
        items = decode_all(deliveries, now)
        plan = Plan()
        for item in items:
            changes = {"attempts": item.attempt - 1}
            properties = codec.again(item, changes, parked=False)
            plan.outgoing.append(settler.route_to(plan, queue, properties, item, 0))
        return self._settler.carry_out(plan, channel, items)

    def time_out(self, lease: int) -> None:
        """No answer came in time. Waits for RabbitMQ."""
        found = self.held.take(lease, None)
        if found is None:
            return
        held, groups = found
        definition = self._definitions.queues.get(held.queue)
        if definition is None:
            return
        now, items = self._clock(), items_of(groups)
        plan = settler.plan(held, items, Settlement(Outcome.NACK, LATE), definition, now)
        if self._notices.wanted:
            self._post(NoticeKind.ACKNOWLEDGE_TIMED_OUT, numbers_of(groups), held.queue, now)
        self.record(plan.events, now)
        self._settler.prepare(plan)
        self._settler.carry_out(plan, held.channel, items, held.fetcher)

    def record(self, events: list[Event], now: int) -> None:
        """Count states, and log the events."""
        for event in events:
            self._count(event.queue, event.state, event.count)
        if events and self._keeps_records:
            self.records.append([Events(0, now, events)])

    def _fit(
        self,
        queue: str,
        definition: QueueDefinition | None,
        channel: Channel,
        fetcher: Fetcher | None,
        groups: list[Group],
        now: int,
    ) -> list[Group]:
        """The groups that may be handed out; the other messages are put aside."""
        if definition is None:
            return groups
        options = definition.options
        fit, plan, aside = [], Plan(), []
        for group in groups:
            if _is_fit(group, options, now):
                fit.append(group)
                continue
            left = []
            for at, item in enumerate(group.items()):
                if not _set_aside(plan, queue, item, options, now):
                    left.append(at)
                else:
                    aside.append(item)
            if left:
                fit.append(group.choose(left))
        if aside:
            self.record(plan.events, now)
            if self._notices.wanted:
                numbers = [event.first for event in plan.events if event.reason == "expired"]
                self._post(NoticeKind.TIMED_OUT, numbers, queue, now)
            if fetcher is not None:
                fetcher.answered(len(aside))
            self._put_aside(plan, channel, aside)
        return fit

    def _put_aside(self, plan: Plan, channel: Channel, items: list[Incoming]) -> None:
        if self._settler.is_ready(plan):
            self._settler.carry_out(plan, channel, items)
            return

        def work() -> None:
            self._settler.prepare(plan)
            self._settler.carry_out(plan, channel, items)

        self._background(work)

    def _record_fetched(self, queue: str, consumer: str, groups: list[Group], silent: bool, now: int) -> None:
        if self._keeps_records:
            events = [
                Event(queue, State.FETCHED, first, count, consumer, attempt)
                for attempt, numbers in _by_attempt(groups).items()
                for first, count in runs_of(numbers)
            ]
            if silent:
                events += [Event(queue, State.KICKED, one.first, one.count, consumer) for one in list(events)]
            self.record(events, now)
        else:
            for state in (State.FETCHED, State.KICKED) if silent else (State.FETCHED,):
                self._count(queue, state, count_of(groups))
        if self._notices.wanted:
            self._post(NoticeKind.CONSUMED, numbers_of(groups), queue, now, consumer)

    def _record_succeeded(self, queue: str, groups: list[Group], consumer: str | None, now: int) -> None:
        if self._keeps_records:
            self.record(settler.succeeded(queue, numbers_of(groups), consumer), now)
        else:
            for state in (State.SUCCESS, State.COMPLETED):
                self._count(queue, state, count_of(groups))

    @property
    def _keeps_records(self) -> bool:
        return not isinstance(self.records, NoRecords)

    def _count(self, queue: str, state: State, count: int) -> None:
        counts = self.counts.setdefault(queue, {})
        counts[state] = counts.get(state, 0) + count

    def _post(
        self, kind: NoticeKind, numbers: list[int], queue: str, now: int, consumer: str | None = None,
        detail: str | None = None,
    ) -> None:  # fmt: skip
        self._notices.post(
            Notice(kind, queue, now, first, count, consumer, detail) for first, count in runs_of(numbers)
        )


def _is_fit(group: Group, options: QueueOptions, now: int) -> bool:
    """Whether all of a group may be handed out, whatever its messages differ in."""
    sample = group.sample
    return (
        sample.invalid is None
        and sample.meta.expires is None
        and sample.meta.wait <= now
        and not options.message_timeout
        and not (options.delivery_limit and sample.attempt - 1 > options.delivery_limit)
    )


def _set_aside(plan: Plan, queue: str, item: Incoming, options: QueueOptions, now: int) -> bool:
    """Plan what to do with a message that may not be handed out; False if it may."""
    expires = item.meta.expires
    limit = options.message_timeout
    if item.invalid is not None:
        settler.end_message(plan, queue, item, State.INVALID, item.invalid, now)
    elif (expires is not None and expires <= now) or (limit and item.message.created + limit <= now):
        to = options.expired_queue or options.dead_letter_queue
        settler.end_message(plan, queue, item, State.DEAD, "expired", now, to=to)
    elif item.meta.wait > now:
        properties = codec.again(item, {"attempts": item.attempt - 1}, parked=False)
        plan.outgoing.append(settler.route_to(plan, queue, properties, item, item.meta.wait - now))
    elif options.delivery_limit and item.attempt - 1 > options.delivery_limit:
        why = "consumer lost; delivery limit reached"
        settler.end_message(plan, queue, item, State.DEAD, why, now, to=options.dead_letter_queue)
    else:
        return False
    return True


def _by_attempt(groups: list[Group]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for group in groups:
        found.setdefault(group.sample.attempt, []).extend(group.numbers)
    return found


def _dispatch(
    queue: str, consumer: str, tag: int, lease: int | None, groups: list[Group], deadline: int,
    fetcher: Fetcher | None,
) -> Dispatch:  # fmt: skip
    again: tuple[bool, ...] = ()
    if any(group.sample.redelivered for group in groups):
        again = tuple(group.sample.redelivered for group in groups for _ in range(len(group)))
    runs = cast(list[tuple[int, int]], Runs(groups))  # a lazy sequence: it is never changed, and seldom read
    return Dispatch(
        queue, consumer, tag, lease, runs,
        [attempt for group in groups for attempt in [group.sample.attempt] * len(group)], deadline,
        (0, fetcher.held if fetcher is not None else 0), again,
    )  # fmt: skip
