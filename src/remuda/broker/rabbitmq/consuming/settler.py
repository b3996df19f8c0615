"""What an answer means on RabbitMQ: a message that goes on is first published again, confirmed, and only then
acknowledged where it was. A crash in between leaves two copies, never none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.broker.rabbitmq.consuming.fetcher import Fetcher
from remuda.broker.rabbitmq.consuming.held_deliveries import HeldDelivery
from remuda.broker.rabbitmq.publishing import codec
from remuda.broker.rabbitmq.publishing.codec import Attempt, Incoming
from remuda.broker.rabbitmq.publishing.confirmed_sender import Sender, Sent
from remuda.broker.rabbitmq.publishing.delays import exchange_of, level_for
from remuda.broker.rabbitmq.shared_state.message_ids import runs_of
from remuda.broker.rabbitmq.shared_state.queue_definitions import QueueDefinition
from remuda.broker.rabbitmq.shared_state.rabbit_topology import RabbitTopology
from remuda.broker.rabbitmq.support import DEAD, QueueKind
from remuda.model.errors import Refused
from remuda.model.life import reason_of_arrival
from remuda.model.queues.options import QueueOptions
from remuda.model.records import Event
from remuda.model.settlement import Settlement, verdict
from remuda.model.state import State


class Plan:
    """What must be published before some deliveries may be acknowledged, and the events of that."""

    def __init__(self) -> None:
        self.outgoing: list[Outgoing] = []
        self.needs: set[str] = set()
        """Queues that must exist."""
        self.parks: set[str] = set()
        """Queues that must have a dead-letter queue."""
        self.levels: set[int] = set()
        self.fronted: list[tuple[Incoming, int]] = []
        """Messages to put before all others, with the attempts that count so far."""
        self.events: list[Event] = []


def succeeded(queue: str, numbers: Sequence[int], consumer: str | None) -> list[Event]:
    """The events of messages that were acknowledged."""
    runs = runs_of(numbers)
    return [
        *(Event(queue, State.SUCCESS, first, count, consumer) for first, count in runs),
        *(Event(queue, State.COMPLETED, first, count) for first, count in runs),
    ]


def plan(
    held: HeldDelivery, items: Sequence[Incoming], answer: Settlement, definition: QueueDefinition, now: int
) -> Plan:
    """The plan for an answer other than an acknowledgement."""
    made = Plan()
    for item in items:
        _decide(made, held, item, answer, definition.options, now)
    return made


def _decide(
    plan: Plan, held: HeldDelivery, item: Incoming, answer: Settlement, options: QueueOptions, now: int
) -> None:
    queue = held.queue
    found = verdict(answer, options, last=bool(options.delivery_limit) and item.attempt > options.delivery_limit)
    if found.state not in (State.RETRY, State.QUEUED):
        end_message(plan, queue, item, found.state, found.reason, now, to=found.to, answer=answer, fetched=held.fetched)
        return
    attempts = item.attempt if found.counts else item.attempt - 1
    due = now + found.delay if found.delay else None
    plan.events.append(
        Event(queue, found.state, item.number, 1, answer.consumer, attempts, found.reason, due, found.front,
              detail=answer.detail)
    )  # fmt: skip
    failed: Attempt | None = None
    if found.state is State.RETRY:
        failed = Attempt(answer.consumer or "", held.fetched, now, found.reason)
        if due is None:
            plan.events.append(Event(queue, State.QUEUED, item.number, 1, attempt=attempts, ahead=found.front))
    if found.front and due is None:
        plan.fronted.append((item, attempts))
    else:
        put_back(plan, queue, item, attempts, found.delay, now, failed)


def put_back(
    plan: Plan, queue: str, item: Incoming, attempts: int, delay: int, now: int, failed: Attempt | None = None
) -> None:
    """Plan to put a message back at the end of the queue, now or after a delay."""
    history = codec.with_history(item, failed) if failed is not None else None
    changes = {"attempts": attempts, "again": True, "wait": now + delay if delay else 0}
    properties = codec.again(item, changes, history, parked=False)
    plan.outgoing.append(route_to(plan, queue, properties, item, delay))


def route_to(plan: Plan, queue: str, properties: bytes, item: Incoming, delay: int) -> Outgoing:
    plan.needs.add(queue)
    if not delay:
        return Outgoing("", queue, properties, item.delivery.body)
    level = level_for(delay)
    plan.levels.add(level)
    return Outgoing(exchange_of(level), queue, properties, item.delivery.body)


def end_message(
    plan: Plan, queue: str, item: Incoming, state: State, reason: str | None, now: int, *, to: str | None = None,
    answer: Settlement | None = None, fetched: int = 0, who: str | None = None,
) -> None:  # fmt: skip
    """Park a message with its reason and history, or send it on to another queue as new."""
    consumer = answer.consumer if answer is not None else None
    detail = answer.detail if answer is not None else None
    headers = {codec.REASON: reason or "", codec.STATE: state.value}
    if fetched:
        headers |= codec.with_history(item, Attempt(consumer or "", fetched, now, reason or ""))
    plan.events.append(
        Event(
            queue,
            state,
            item.number,
            1,
            consumer,
            item.attempt,
            reason,
            who=who or (answer.who if answer else None),
            detail=detail,
            to=to,
        )
    )
    if to is not None:
        changes: dict[str, Any] = {"attempts": 0, "again": False, "wait": 0}
        properties = codec.again(item, changes, headers, parked=False)
        plan.events.append(Event(to, State.QUEUED, item.number, 1, reason=reason_of_arrival(reason, queue)))
        plan.outgoing.append(route_to(plan, to, properties, item, 0))
        return
    changes = {"attempts": item.attempt, "failed": now, "who": who, "detail": _short(detail), "consumer": consumer}
    plan.parks.add(queue)
    plan.outgoing.append(Outgoing("", queue + DEAD, codec.again(item, changes, headers), item.delivery.body))


def _short(detail: str | None) -> str | None:
    """As much of a traceback as fits into a header."""
    return detail if detail is None or len(detail) < 20_000 else detail[:10_000] + "\n…\n" + detail[-10_000:]


class Settler:
    """Carries plans out."""

    def __init__(
        self,
        sender: Sender,
        topology: RabbitTopology,
        ensure: Callable[[str], QueueDefinition],
    ) -> None:
        self._sender = sender
        self._topology = topology
        self._ensure = ensure

    def is_ready(self, plan: Plan) -> bool:
        """Whether everything that a plan needs exists, as far as this process knows."""
        topology = self._topology
        return (
            all(map(topology.knows, plan.needs))
            and all(topology.knows(queue + DEAD) for queue in plan.parks)
            and all(map(topology.has_level, plan.levels))
        )

    def prepare(self, plan: Plan) -> None:
        """Create what a plan needs. Waits for RabbitMQ."""
        for queue in plan.needs | plan.parks:
            definition = self._ensure(queue)
            if queue in plan.parks:
                self._topology.make_parking(queue, definition)
        for level in plan.levels:
            self._topology.make_level(level)

    def carry_out(
        self,
        plan: Plan,
        channel: Channel,
        items: Sequence[Incoming],
        fetcher: Fetcher | None = None,
        hold: Callable[[], None] | None = None,
    ) -> Future[int]:
        """Publish, then acknowledge. The future gives how many were settled. Never waits: `prepare` must be called
        before. What RabbitMQ refuses goes back to its queue or, with `hold`, stays with its consumer."""
        settled: Future[int] = Future()
        fronted = {id(item) for item, _ in plan.fronted}
        self._put_in_front(plan, channel, fetcher)
        acked = [item.delivery for item in items if id(item) not in fronted]
        if not plan.outgoing:
            settled.set_result(channel.ack(acked) + len(plan.fronted))
            return settled

        def confirmed(sent: Future[Sent]) -> None:
            try:
                result = sent.result()
                refused = result.nacked | result.returned.keys()
                if refused:
                    self._refused(plan, channel, acked, result, settled, hold)
                    return
                settled.set_result(channel.ack(acked) + len(plan.fronted))
            except BaseException as error:
                settled.set_exception(error)

        self._sender.submit(plan.outgoing).add_done_callback(confirmed)
        return settled

    def _put_in_front(self, plan: Plan, channel: Channel, fetcher: Fetcher | None) -> None:
        """Keep messages that must come next in this process, before all that was fetched: a quorum queue takes a while
        to put messages back, and others could overtake them. If the fetcher is closed or paused, they are returned."""
        again = [
            msgspec.structs.replace(
                item.delivery,
                redelivered=True,
                raw_properties=codec.again(item, {"attempts": attempts, "again": True}, parked=False),
            )
            for item, attempts in plan.fronted
        ]
        stays = fetcher is not None and self._topology.kind is QueueKind.QUORUM
        if again and not (stays and fetcher is not None and fetcher.put_in_front(again)):
            for delivery in again:
                channel.nack(delivery)

    def _refused(
        self, plan: Plan, channel: Channel, acked: list[Any], sent: Sent, settled: Future[int],
        hold: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        """RabbitMQ refused some: they stay in their queue. Queues that are gone are created again the next time."""
        refused = sent.nacked | sent.returned.keys()
        if hold is not None:
            hold()
        else:
            channel.ack([delivery for place, delivery in enumerate(acked) if place not in refused])
            for place in refused:
                channel.nack(acked[place])
        for place in sent.returned:
            self._topology.forget(plan.outgoing[place].routing_key)
        first = plan.outgoing[min(refused)]
        settled.set_exception(
            Refused(
                f"RabbitMQ refused {len(refused)} messages for {first.routing_key!r}: the queue is full or gone"
                + ("" if hold else "; they are back in their queue and will be delivered again")
            )
        )
