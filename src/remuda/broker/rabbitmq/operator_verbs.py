"""What operators do with messages: list dead letters, reprocess or forget them, clear and move a queue.

RabbitMQ shows a queue's messages only to consumers. So an operator consumes all of them, takes out those that are
chosen, and gives the others back, at the cost of reading the whole queue.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.broker.rabbitmq.consuming import settler
from remuda.broker.rabbitmq.consuming.settler import Plan
from remuda.broker.rabbitmq.publishing import codec
from remuda.broker.rabbitmq.publishing.codec import Incoming
from remuda.broker.rabbitmq.rabbit_runtime import Runtime
from remuda.broker.rabbitmq.shared_state.message_ids import id_of, number_of, runs_of
from remuda.broker.rabbitmq.support import DEAD
from remuda.broker.roster import Roster
from remuda.model.document import Document, QueueView
from remuda.model.errors import HostNotResponding, NotFound, Unsupported
from remuda.model.life import PARKED, Consumption, Life, check_move, reason_of_arrival
from remuda.model.notes import Noted
from remuda.model.operations.commands import (
    Bind,
    Clear,
    Command,
    ConfigureQueue,
    DeclareExchange,
    DeclareQueue,
    Forget,
    Move,
    RemoveExchange,
    RemoveQueue,
    Reprocess,
    SetStatus,
    Unbind,
)
from remuda.model.operations.filters import MessageFilter, Which
from remuda.model.operations.results import ParkedMessage
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.options import Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.records import Event
from remuda.model.state import State

_SILENCE: Final = 1.0
_LONG_SILENCE: Final = 10.0
_PATIENCE: Final = 60.0
"""Seconds to wait for RabbitMQ to deliver what it says it has, or to have back what it was given."""
_PREFETCH: Final = 5_000
_REMEMBERED: Final = 65_536
_AT_ONCE: Final = 1000


class Operating:
    """Commands and queries of administrators, operators and spectators."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen: OrderedDict[int, Document] = OrderedDict()
        self.info = runtime.info
        self.queues = runtime.infos
        self.reader = runtime.log
        self.health = runtime.health
        self.on_notice = runtime.notices.add
        self.off_notice = runtime.notices.remove
        roster = Roster(runtime.clock)
        self.workers, self.order_worker = roster.all, roster.order
        self.tell_worker, self.worker_left = roster.tell, roster.leave

    def cancel_running(self, queue: str, offset: int, who: str) -> bool:
        raise Unsupported(
            "on RabbitMQ a message that is being handled can be cancelled only in the process that handles it; it "
            f"goes on in {queue}, and nothing was changed",
            "cancel_running",
        )

    def carry_out(self, command: Command) -> Any:
        """Execute a command. Waits for RabbitMQ."""
        match command:
            case DeclareQueue():
                return self._runtime.queues.declare(command)
            case ConfigureQueue():
                return self._runtime.queues.configure(command)
            case SetStatus():
                return self._runtime.set_status(command)
            case RemoveQueue():
                return self.remove(command)
            case Clear():
                return self.clear(command)
            case Reprocess():
                return self.reprocess(command)
            case Forget():
                return self.forget(command)
            case Move():
                return self.move(command)
            case DeclareExchange() | RemoveExchange() | Bind() | Unbind():
                return self._runtime.routers.carry_out(command)
        raise Unsupported(f"RabbitMQ has no equivalent of {type(command).__name__}; nothing was changed", "command")

    def exchanges(self) -> dict[str, tuple[ExchangeKind, tuple[Binding, ...]]]:
        return self._runtime.routers.all()

    def flush(self) -> None:
        self._runtime.records.flush()

    def document(self, message: str | int) -> Document:
        """A message with its life in each of its queues, by its id or number, from the event log. One that an operator
        has listed is known by its number, from its own headers: a number does not tell an id that is no snowflake."""
        if isinstance(message, int) and message in self._seen:
            return self._seen[message]
        self._runtime.check_open()
        own = id_of(message) if isinstance(message, int) else message
        found = None if own is None else self._runtime.document(own)
        if own is None or found is None:
            raise NotFound(f"there is no message {message!r}; it may have been collected after its retention")
        return msgspec.structs.replace(found, offset=number_of(own))

    def parked(self, queue: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        """Dead letters, the newest first. They are remembered, so that `message` finds them by number."""
        definition = self._runtime.queues.definition(queue)
        if not definition.parks:
            return []
        found: list[tuple[ParkedMessage, Incoming]] = []

        def look(items: list[Incoming], channel: Channel) -> None:
            for item in items:
                state, reason, when = codec.state_of(item)
                if _fits(chosen, item, state, reason, when):
                    found.append((ParkedMessage(item.number, state, reason, when), item))

        self._sift(queue + DEAD, look)
        found.reverse()
        found.sort(key=lambda pair: -pair[0].time)
        for one, item in found[:limit]:
            self._remember(_document(queue, one, item))
        return [one for one, _ in found[:limit]]

    def reprocess(self, command: Reprocess) -> int:
        for state in command.filter.taken:
            if state is not State.RETRY:
                check_move(state, State.QUEUED)
        return self._out_of_parking(command.queue, command.filter, command.queue, command.who)

    def forget(self, command: Forget) -> int:
        return self._out_of_parking(command.queue, command.filter, None, command.who)

    def move(self, command: Move) -> int:
        self._runtime.queues.definition(command.queue)
        self._runtime.queues.ensure(command.to)
        count = 0
        if command.filter.taken & PARKED:
            count += self._out_of_parking(command.queue, command.filter, command.to, command.who)
        if State.QUEUED in command.filter.taken:
            count += self._drain(
                command.queue,
                lambda item: _fits(command.filter, item, State.QUEUED, "", item.message.created),
                lambda plan, item, now: _send_on(plan, command.queue, command.to, item, now, command.who),
            )
        return count

    def clear(self, command: Clear) -> int:
        def wanted(item: Incoming) -> bool:
            if command.offsets is not None and not _within(item.number, command.offsets):
                return False
            return command.lanes == "all" or (item.message.priority > 0) == (command.lanes == "priority")

        def end(plan: Plan, item: Incoming, now: int) -> None:
            settler.end_message(plan, command.queue, item, State.DEAD, command.reason, now, who=command.who)

        self._runtime.check_open()
        self._runtime.queues.definition(command.queue)
        return self._drain(command.queue, wanted, end)

    def remove(self, command: RemoveQueue) -> None:
        """Remove a queue, and log the end of the messages in it."""
        known, events = self._runtime.queues.definition(command.queue), []

        def end(items: list[Incoming], channel: Channel) -> None:
            for item in items:
                events.append(Event(command.queue, State.DEAD, item.number, 1, reason="queue removed", who=command.who))
            channel.ack([item.delivery for item in items])

        if known.status is not Status.NOT_INITIALIZED:
            for fetcher in self._runtime.consumers.of(command.queue):
                fetcher.pause()
            self._sift(command.queue, end)
        self._runtime.remove(command)
        self._runtime.consuming.record(events, self._runtime.clock())

    def notes(self, queue: str, offset: int, after: int) -> list[Noted]:
        """There are none: see `support.refuse_note`."""
        return []

    def flow(self, queue: str, limit: int) -> FlowInfo:
        """Nothing: queues with such rules are refused."""
        self._runtime.queues.definition(queue)
        return FlowInfo()

    def waiting(self, queue: str, which: Which) -> list[tuple[int, int]]:
        """The numbers of waiting messages, in the queue's order. All of them are read and published again, since
        RabbitMQ shows a message only by delivering it; they are remembered, so that `message` finds them by number."""
        self._runtime.check_open()
        self._runtime.queues.definition(queue)
        if which is not Which.WAITING:
            raise Unsupported(f"RabbitMQ does not tell which messages are {which}; ask for all that wait", "which")
        found: list[int] = []

        def look(item: Incoming) -> bool:
            found.append(item.number)
            self._remember(_document(queue, ParkedMessage(item.number, State.QUEUED, "", item.message.created), item))
            return False

        self._drain(queue, look, lambda plan, item, now: None)
        return runs_of(found, 1)

    # Reading queues by consuming them

    def _remember(self, document: Document) -> None:
        self._seen[document.offset] = document
        self._seen.move_to_end(document.offset)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _out_of_parking(self, queue: str, chosen: MessageFilter, to: str | None, who: str | None) -> int:
        """Take dead letters out: to a queue, as new, or for good."""
        definition = self._runtime.queues.definition(queue)
        if not definition.parks:
            return 0
        runtime, count = self._runtime, 0
        if to is not None:
            runtime.queues.ensure(to)

        def sort(items: list[Incoming], channel: Channel) -> None:
            nonlocal count
            meant = []
            for item in items:
                state, reason, when = codec.state_of(item)
                if _fits(chosen, item, state, reason, when):
                    meant.append(item)
            now = runtime.clock()
            for start in range(0, len(meant), _AT_ONCE):
                batch, plan = meant[start : start + _AT_ONCE], Plan()
                for item in batch:
                    if to is not None:
                        _send_back(plan, queue, to, item, who)
                runtime.settler.prepare(plan)
                runtime.settler.carry_out(plan, channel, batch).result(60)
                runtime.consuming.record(plan.events, now)
                count += len(batch)

        self._sift(queue + DEAD, sort)
        return count

    def _drain(self, queue: str, wanted: Callable[[Incoming], bool], end: Callable[[Plan, Incoming, int], None]) -> int:
        """Take waiting messages out of a queue; the others are published to it again, in their order."""
        runtime, count = self._runtime, 0
        runtime.consumers.pause(queue)

        def sort(items: list[Incoming], channel: Channel) -> None:
            nonlocal count
            now = runtime.clock()
            for start in range(0, len(items), _AT_ONCE):
                batch, plan = items[start : start + _AT_ONCE], Plan()
                for item in batch:
                    if wanted(item):
                        end(plan, item, now)
                        count += 1
                    else:
                        properties = codec.again(item, {"attempts": item.attempt - 1}, parked=False)
                        plan.needs.add(queue)
                        plan.outgoing.append(Outgoing("", queue, properties, item.delivery.body))
                runtime.settler.prepare(plan)
                runtime.settler.carry_out(plan, channel, batch).result(60)
                runtime.consuming.record(plan.events, now)

        try:
            self._sift(queue, sort)
        finally:
            runtime.consumers.follow_status(queue)
        return count

    def _sift(self, queue: str, sort: Callable[[list[Incoming], Channel], None]) -> None:
        """Consume what is in a queue now, pass it to `sort`, and give back what that did not acknowledge."""
        runtime = self._runtime
        runtime.consumers.check_up()
        seen = runtime.topology.look(queue)
        if seen is None:
            return
        channel = runtime.consuming_connection.channel()
        try:
            deliveries: list[Delivery] = []
            left = seen.message_count
            while left > 0 and (found := self._gather(queue, channel, min(left, _PREFETCH))):
                deliveries += found
                left -= len(found)
            now = runtime.clock()
            sort([codec.decode(one, now) for one in deliveries], channel)
            unanswered = channel.window.unanswered
        finally:
            channel.close()
        self._await_return(queue, unanswered)

    def _gather(self, queue: str, channel: Channel, count: int) -> list[Delivery]:
        """Receive so many messages, or what the queue still has, by a consumer of their own: one that asked for all of
        a long queue at once would wait for seconds until the first one comes."""
        channel.set_prefetch(count)
        consumer = channel.consume(queue)
        found: list[Delivery] = []
        heard = time.monotonic()
        while len(found) < count:
            arrived = consumer.get(count - len(found), timeout=0.1)
            found += arrived
            silence = time.monotonic() - heard
            if arrived:
                heard = time.monotonic()
            elif silence > _SILENCE:
                seen = self._runtime.topology.look(queue)
                ready = 0 if seen is None else seen.message_count
                alone = seen is not None and seen.consumer_count <= 1
                if not ready and silence > (_LONG_SILENCE if alone else _SILENCE):
                    break  # the others expired, or were taken by somebody else
                if silence > _PATIENCE:
                    raise HostNotResponding(
                        f"RabbitMQ does not deliver the {ready} messages of {queue!r}; nothing was changed. Try again "
                        "when it is less busy"
                    )
        consumer.cancel()
        return found

    def _await_return(self, queue: str, count: int) -> None:
        """Wait until what was given back is in the queue again, so that the next query sees it; others may take it."""
        back, changed = -1, time.monotonic()
        while count:
            seen = self._runtime.topology.look(queue)
            if seen is None or seen.message_count >= count:
                return
            if seen.message_count != back:
                back, changed = seen.message_count, time.monotonic()
            if time.monotonic() - changed > (_SILENCE if seen.consumer_count else _PATIENCE):
                return
            time.sleep(0.005)


def _send_back(plan: Plan, queue: str, to: str, item: Incoming, who: str | None) -> None:
    """A dead letter begins again, in its queue or in another."""
    changes: dict[str, Any] = {"attempts": 0, "again": False, "wait": 0, "failed": 0, "detail": None, "expires": None}
    properties = codec.again(item, changes, parked=False)
    if to == queue:
        plan.events.append(Event(queue, State.QUEUED, item.number, 1, reason="reprocessed", who=who))
    else:
        plan.events.append(Event(queue, State.QUEUED, item.number, 1, reason=codec.state_of(item)[1], who=who))
        _note_move(plan, queue, to, item, 0, who)
    plan.outgoing.append(settler.route_to(plan, to, properties, item, 0))


def _send_on(plan: Plan, queue: str, to: str, item: Incoming, now: int, who: str | None) -> None:
    """A waiting message goes on in another queue, with the attempts that counted and what it waits for."""
    attempts = item.attempt - 1
    properties = codec.again(item, {"attempts": attempts, "again": attempts > 0}, parked=False)
    _note_move(plan, queue, to, item, attempts, who)
    plan.outgoing.append(settler.route_to(plan, to, properties, item, max(item.meta.wait - now, 0)))


def _note_move(plan: Plan, queue: str, to: str, item: Incoming, attempts: int, who: str | None) -> None:
    why = reason_of_arrival(None, queue)
    plan.events.append(Event(queue, State.DEAD, item.number, 1, who=who, to=to))
    plan.events.append(Event(to, State.QUEUED, item.number, 1, attempt=attempts, reason=why, who=who))


def _fits(chosen: MessageFilter, item: Incoming, state: State, reason: str, when: int) -> bool:
    return chosen.fits(state, reason, when) and (chosen.offsets is None or _within(item.number, chosen.offsets))


def _within(number: int, runs: Iterable[tuple[int, int]]) -> bool:
    return any(first <= number < first + count for first, count in runs)


def _document(queue: str, parked: ParkedMessage, item: Incoming) -> Document:
    """A message's document from its own headers."""
    history: Sequence[codec.Attempt] = item.history
    tried = [Consumption(one.consumer, one.fetched) for one in history]
    ended, last = parked.state is not State.QUEUED, history[-1].reason if history else None
    life = Life(
        parked.state, parked.time, item.meta.attempts, consumed_by=tried, delivered=bool(history),
        consumed=history[0].fetched if history else None, processed=history[0].ended if history else None,
        failed=parked.time if ended else None, reason=parked.reason if ended else last, detail=item.meta.detail,
        duration=history[0].ended - history[0].fetched if history else None,
    )  # fmt: skip
    message, view = item.message, QueueView.of(queue, life)
    return Document(item.number, message, message.created, len(message.topics or (message.name,)), (view,))
