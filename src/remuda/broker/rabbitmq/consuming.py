"""From what RabbitMQ delivers to what a consumer is given: expired, early and foreign messages are sorted out here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from remuda.amqp.channel import Channel
from remuda.amqp.delivery import Delivery
from remuda.broker.embedded.notices import NoticeBoard
from remuda.broker.rabbitmq import codec, settling
from remuda.broker.rabbitmq.codec import Incoming
from remuda.broker.rabbitmq.definitions import Definitions, QueueDefinition
from remuda.broker.rabbitmq.fetcher import FRONT, Fetcher
from remuda.broker.rabbitmq.hands import Hand, Hands
from remuda.broker.rabbitmq.numbers import runs_of
from remuda.broker.rabbitmq.records import NoRecords, RecordSink
from remuda.broker.rabbitmq.settling import Plan, Settler
from remuda.core.effects import Dispatch
from remuda.model.errors import NotFound
from remuda.model.messages import Messages
from remuda.model.notices import Notice, NoticeKind
from remuda.model.options import Acknowledge
from remuda.model.records import Event, Events
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State

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
        self.hands = Hands()
        self.counts: dict[str, dict[State, int]] = {}
        """How often messages of a queue came into a state, as this process saw it."""
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
        """What a consumer gets of these deliveries; None where nothing is left for it. It never waits."""
        now = self._clock()
        definition = self._definitions.queues.get(queue)
        items = self._fit(queue, definition, channel, fetcher, codec.decode_all(deliveries, now), now)
        if not items:
            return None
        options = definition.options if definition is not None else None
        silent = options is not None and options.acknowledge is Acknowledge.NONE
        deadline = now + (options.acknowledge_timeout if options is not None else 0)
        lease = None
        if silent:
            channel.ack([item.delivery for item in items])
            if fetcher is not None:
                fetcher.answered(len(items))
        else:
            hand = Hand(queue, consumer, channel, fetcher, items, now, deadline)
            self.hands.add(hand)
            lease = hand.lease
        self._tell_fetched(queue, consumer, items, silent, now)
        return _dispatch(queue, consumer, tag, lease, items, deadline, fetcher), _messages(items)

    def settle(
        self, lease: int, settlement: Settlement, runs: Sequence[tuple[int, int]] | None
    ) -> Callable[[], Future[int]] | int:
        """Answer. Gives how many were settled or, where RabbitMQ has to be asked first, what does it."""
        found = self.hands.take(lease, runs)
        if found is None:
            return 0
        hand, items = found
        now = self._clock()
        definition = self._definitions.queues.get(hand.queue)
        if definition is None:
            raise NotFound(f"there is no queue {hand.queue!r} any more; its messages are gone with it")
        plan = settling.plan(hand, items, settlement, definition, now)
        self.tell(plan.events, now)
        if self._notices.wanted:
            self._notices.post(
                Notice(
                    NoticeKind.ACKNOWLEDGED,
                    hand.queue,
                    now,
                    first,
                    count,
                    settlement.consumer,
                    settlement.outcome.value,
                )
                for first, count in runs_of([item.number for item in items])
            )
        if not plan.outgoing and not plan.fronted:
            return hand.channel.ack([item.delivery for item in items])

        def carry_out() -> Future[int]:
            if not self._settler.is_ready(plan):
                self._settler.prepare(plan)
            return self._settler.carry_out(plan, hand.channel, items, hand.fetcher)

        return carry_out

    def give_back(self, queue: str, channel: Channel, deliveries: Sequence[Delivery]) -> Future[int] | None:
        """Deliveries that nobody was given: to the queue again, as if they had never left it."""
        for delivery in deliveries:
            if delivery.redelivered and delivery.message_count == FRONT:
                channel.nack(delivery)  # back to its place, which is the front
        deliveries = [delivery for delivery in deliveries if delivery.message_count != FRONT]
        if not deliveries:
            return None
        now = self._clock()
        items = codec.decode_all(deliveries, now)
        plan = Plan()
        for item in items:
            changes = {"attempts": item.attempt - 1}
            properties = codec.again(item, changes, parked=False)
            plan.outgoing.append(settling.route_to(plan, queue, properties, item, 0))
        return self._settler.carry_out(plan, channel, items)

    def time_out(self, lease: int) -> None:
        """No answer came in time. Waits for RabbitMQ."""
        found = self.hands.take(lease, None)
        if found is None:
            return
        hand, items = found
        definition = self._definitions.queues.get(hand.queue)
        if definition is None:
            return
        now = self._clock()
        plan = settling.plan(hand, items, Settlement(Outcome.NACK, LATE), definition, now)
        if self._notices.wanted:
            self._notices.post(
                Notice(NoticeKind.ACKNOWLEDGE_TIMED_OUT, hand.queue, now, first, count)
                for first, count in runs_of([item.number for item in items])
            )
        self.tell(plan.events, now)
        self._settler.prepare(plan)
        self._settler.carry_out(plan, hand.channel, items, hand.fetcher)

    def tell(self, events: list[Event], now: int) -> None:
        """Count states, and keep the events."""
        for event in events:
            counts = self.counts.setdefault(event.queue, {})
            counts[event.state] = counts.get(event.state, 0) + event.count
        if events and not isinstance(self.records, NoRecords):
            self.records.append([Events(0, now, events)])

    def _fit(
        self,
        queue: str,
        definition: QueueDefinition | None,
        channel: Channel,
        fetcher: Fetcher | None,
        items: list[Incoming],
        now: int,
    ) -> list[Incoming]:
        """Those that may be handed out; what becomes of the others is done on the side."""
        if definition is None:
            return items
        options = definition.options
        fit, plan, aside = [], Plan(), []
        for item in items:
            expires = item.meta.expires
            limit = options.message_timeout
            if item.invalid is not None:
                settling.end_message(plan, queue, item, State.INVALID, item.invalid, now)
            elif (expires is not None and expires <= now) or (limit and item.message.created + limit <= now):
                to = options.expired_queue or options.dead_letter_queue
                settling.end_message(plan, queue, item, State.DEAD, "expired", now, to=to)
            elif item.meta.wait > now:
                changes = {"attempts": item.attempt - 1}
                properties = codec.again(item, changes, parked=False)
                plan.outgoing.append(settling.route_to(plan, queue, properties, item, item.meta.wait - now))
            elif options.delivery_limit and item.attempt - 1 > options.delivery_limit:
                why = "consumer lost; delivery limit reached"
                settling.end_message(plan, queue, item, State.DEAD, why, now, to=options.dead_letter_queue)
            else:
                fit.append(item)
                continue
            aside.append(item)
        if aside:
            self.tell(plan.events, now)
            if self._notices.wanted and any(event.reason == "expired" for event in plan.events):
                numbers = [event.first for event in plan.events if event.reason == "expired"]
                self._notices.post(Notice(NoticeKind.TIMED_OUT, queue, now, *run) for run in runs_of(numbers))
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

    def _tell_fetched(self, queue: str, consumer: str, items: list[Incoming], silent: bool, now: int) -> None:
        events = [
            Event(queue, State.FETCHED, first, count, consumer, attempt)
            for attempt, numbers in _by_attempt(items).items()
            for first, count in runs_of(numbers)
        ]
        if silent:
            events += [Event(queue, State.KICKED, one.first, one.count, consumer) for one in list(events)]
        self.tell(events, now)
        if self._notices.wanted:
            self._notices.post(
                Notice(NoticeKind.CONSUMED, queue, now, first, count, consumer)
                for first, count in runs_of([item.number for item in items])
            )


def _by_attempt(items: list[Incoming]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for item in items:
        found.setdefault(item.attempt, []).append(item.number)
    return found


def _messages(items: list[Incoming]) -> Messages:
    if len(items) == 1:
        return Messages.of_one(items[0].message)
    return Messages.of([item.message for item in items])


def _dispatch(
    queue: str, consumer: str, tag: int, lease: int | None, items: list[Incoming], deadline: int,
    fetcher: Fetcher | None,
) -> Dispatch:  # fmt: skip
    return Dispatch(
        queue, consumer, tag, lease, [(item.number, 1) for item in items], [item.attempt for item in items], deadline,
        (0, fetcher.held if fetcher is not None else 0),
        tuple(item.redelivered for item in items) if any(item.redelivered for item in items) else (),
    )  # fmt: skip
