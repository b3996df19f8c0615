"""The queues of one broker: how they are created, changed and removed, and when something is next due in each."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import msgspec

from remuda.core import admission, delivering
from remuda.core.credit import Credit
from remuda.core.extensions import (
    ContainedHandler,
    FactsOf,
    HandlerFor,
    MessageFacts,
    StrategyFor,
    no_handler,
    unknown,
)
from remuda.core.queue import SLICE, Queue
from remuda.core.ranges import MessageRange
from remuda.core.ready import NEVER, ReadyRun
from remuda.core.recorder import Recorder
from remuda.core.routing import Routing
from remuda.core.strategies import by_type, contained
from remuda.model.commands import ConfigureQueue, DeclareQueue, NamedOptions, RemoveQueue, SetStatus
from remuda.model.errors import Conflict, InvalidOption, NotFound
from remuda.model.notices import NoticeKind
from remuda.model.options import AutoDestroy, QueueOptions, Status
from remuda.model.records import CONFIGURED, CREATED, MOVED, REMOVED, STATUS, Event, QueueChange, arrival_reason
from remuda.model.results import Declared, QueueInfo, differences
from remuda.model.state import PARKED, State
from remuda.model.texts import no_queue, read_name


class Registry:
    """Holds the queues, the recorder of their changes, and the next time to look at each."""

    def __init__(
        self,
        recorder: Recorder,
        routing: Routing,
        *,
        auto_queue_creation: bool = True,
        default_options: QueueOptions | None = None,
        strategy_for: StrategyFor = by_type,
        handler_for: HandlerFor = no_handler,
        facts_of: FactsOf = unknown,
    ) -> None:
        self.recorder = recorder
        self.routing = routing
        self.auto_queue_creation = auto_queue_creation
        self.default_options = default_options or QueueOptions()
        self.queues: dict[str, Queue] = {}
        self.credits: dict[str, Credit] = {}
        """Credit that consumers share, by group."""
        self.slice_size = SLICE
        self._strategy_for = strategy_for
        self._handler_for = handler_for
        self._facts_of = facts_of
        self.closing = False
        """Whether consumers leave because the broker closes: then `auto_destroy` does not remove their queues."""
        self.wakes: list[tuple[int, str]] = []
        """When to look at which queue, a heap. The first is no later than `next_wake`."""
        self._touched: dict[str, None] = {}
        self._evicting: set[str] = set()
        """Full queues that are ending messages right now."""

    # Commands

    def declare(self, command: DeclareQueue) -> Declared:
        name, queue = command.queue, self.queues.get(command.queue)
        if queue is None:
            self.create(name, self.options(command.options), Status.RUNNING)
            return Declared(True, {})
        if queue.status is Status.NOT_INITIALIZED:
            self.initialize(queue, command.options)
            self.after(queue)
            return Declared(True, {})
        return Declared(False, differences(command.options, queue.options))

    def configure(self, command: ConfigureQueue) -> QueueOptions:
        queue = self.queue(command.queue)
        options = queue.options.with_values(command.options)
        if options.type is not queue.options.type and queue.status is not Status.NOT_INITIALIZED:
            raise InvalidOption(
                f"queue {queue.name!r} is a {queue.options.type.value} queue and stays one; "
                "create another queue for another type"
            )
        self.recorder.change(QueueChange(CONFIGURED, queue.name, self.recorder.now, options, who=command.who))
        self.apply_options(queue, options)
        self.evict(queue)
        self.after(queue)
        return options

    def set_status(self, command: SetStatus) -> None:
        queue, status = self.queue(command.queue), command.status
        if status is Status.NOT_INITIALIZED or queue.status is Status.NOT_INITIALIZED:
            raise Conflict(
                f"queue {queue.name!r} is {queue.status.value} and cannot be set to {status.value}; "
                "the first publish, or creating it with a type, initializes a queue"
            )
        self._set_status(queue, status, command.who)
        self.after(queue)

    def remove(self, command: RemoveQueue) -> None:
        self.remove_queue(self.queue(command.queue), command.who)
        self.settle_down()

    def queue(self, name: str) -> Queue:
        try:
            return self.queues[name]
        except KeyError:
            raise NotFound(no_queue(name, self.queues)) from None

    def info(self, name: str) -> QueueInfo:
        return _describe(self.queue(name))

    # Options

    def options(self, named: NamedOptions) -> QueueOptions:
        return self.default_options if named is None else self.default_options.with_values(named)

    # How queues are created, changed and removed

    def check_creation(self, name: str) -> None:
        if not self.auto_queue_creation:
            raise NotFound(
                f"there is no queue {name!r} and auto_queue_creation is off; nothing was stored or created. "
                f"Create it first: broker.create_queue({name!r})"
            )

    def create(self, name: str, options: QueueOptions, status: Status, named: Iterable[str] = ()) -> Queue:
        read_name("a queue's name", name)
        change = QueueChange(CREATED, name, self.recorder.now, options, status, named=tuple(sorted(named)))
        self.recorder.change(change)
        queue = self.open(name, options, status)
        queue.named = frozenset(change.named)
        self.recorder.notice(NoticeKind.QUEUE_CREATED, queue)
        return queue

    def open(self, name: str, options: QueueOptions, status: Status) -> Queue:
        """Open a queue whose creation is already recorded."""
        queue = Queue(name, options, contained(self._strategy_for(name, options), name, options), None, status)
        queue.handler = self._handler(name, options)
        queue.note_rules()
        self.queues[name] = queue
        self.routing.changed()
        if options.is_channel:
            self.routing.open_channel(name, options.topics, options.patterns)
        return queue

    def apply_options(self, queue: Queue, options: QueueOptions) -> None:
        queue.counts_confirmations |= options.confirmations != 1
        queue.options = options
        queue.strategy = contained(self._strategy_for(queue.name, options), queue.name, options)
        queue.handler = self._handler(queue.name, options)
        queue.note_rules()
        queue.offer_all()
        self.routing.changed()
        self.routing.close_channel(queue.name)
        if options.is_channel:
            self.routing.open_channel(queue.name, options.topics, options.patterns)

    def initialize(self, queue: Queue, named: NamedOptions) -> None:
        """Give a queue that was only subscribed to so far its type; options its subscriber set stay (Q13)."""
        options = queue.options
        if named is not None:
            values = {name: value for name, value in named.items() if name not in queue.named}
            options = queue.options.with_values(values)
        self.recorder.change(QueueChange(CONFIGURED, queue.name, self.recorder.now, options))
        self.apply_options(queue, options)
        self._set_status(queue, Status.RUNNING, None)
        self.touch(queue.name)

    def drop(self, name: str) -> None:
        self.queues.pop(name, None)
        self.routing.forget_queue(name)
        self.routing.changed()
        self.routing.close_channel(name)

    def remove_queue(self, queue: Queue, who: str | None) -> None:
        for piece in list(queue.flights):
            if piece.state is State.SUCCESS:
                queue.let_go(piece)
        for source, first, count, _ in list(whereabouts(queue)):
            dead = Event(queue.name, State.DEAD, first, count, reason="queue removed", who=who)
            self.recorder.event(queue, source, dead)
        self.recorder.change(QueueChange(REMOVED, queue.name, self.recorder.now, who=who))
        for consumer in list(queue.consumers):
            left = queue.leave(consumer)
            if left is not None:
                self.recorder.close(left.tag)
                if left.group is not None and not left.credit.members:
                    self.credits.pop(left.group, None)
        self._spread_credit(queue)
        for tag in queue.waiters:
            self.recorder.close(tag)
        self.drop(queue.name)
        self.recorder.notice(NoticeKind.QUEUE_REMOVED, queue)

    def _handler(self, name: str, options: QueueOptions) -> ContainedHandler | None:
        handler = self._handler_for(name, options)
        return None if handler is None else ContainedHandler(handler)

    def _set_status(self, queue: Queue, status: Status, who: str | None) -> None:
        if status is queue.status:
            return
        self.recorder.change(QueueChange(STATUS, queue.name, self.recorder.now, status=status, who=who))
        queue.status = status
        queue.note_rules()
        self.recorder.notice(NoticeKind.STATUS_CHANGED, queue, detail=status.value)

    # Messages that end, or go on elsewhere

    def end(
        self, queue: Queue, source: State, first: int, count: int, reason: str, *, state: State = State.DEAD,
        priority: int = 0, to: str | None = None, consumer: str | None = None, attempt: int = 0, who: str | None = None,
        detail: str | None = None, lifted: Any = None,
    ) -> None:  # fmt: skip
        """End messages in this queue: they are parked, or move to the queue `to` as far as it takes them."""
        if to is None or to == queue.name:
            self._end_part(
                queue, source, first, count, reason, state, priority, None, consumer, attempt, who, detail, lifted
            )
            return
        for start, size, taken in self.taken_by(to, first, count):
            part = None if lifted is None else _between(lifted, start, size)
            self._end_part(
                queue, source, start, size, reason, state, priority, to if taken else None, consumer, attempt, who,
                detail, part,
            )  # fmt: skip

    def _end_part(
        self, queue: Queue, source: State, first: int, count: int, reason: str, state: State, priority: int,
        to: str | None, consumer: str | None, attempt: int, who: str | None, detail: str | None, lifted: Any,
    ) -> None:  # fmt: skip
        event = Event(
            queue.name, state, first, count, consumer, attempt, reason, who=who, detail=detail, to=to
        )  # fmt: skip
        self.recorder.event(queue, source, event, lifted=lifted)
        if to is not None:
            why = arrival_reason(reason, to, queue.name)
            arrived = Event(to, State.QUEUED, first, count, reason=why, priority=priority, who=who)
            self.enter(self.queues[to], arrived)

    def taken_by(self, name: str, first: int, count: int) -> list[tuple[int, int, bool]]:
        """Which of these messages another queue will take: runs in order, each with whether it is taken. The queue is
        created if necessary, before anything moves."""
        target = self.queues.get(name)
        if target is None:
            if not self.auto_queue_creation:
                return [(first, count, False)]
            target = self.create(name, self.default_options, Status.RUNNING)
        elif target.status is Status.NOT_INITIALIZED:
            self.initialize(target, None)
        return admission.taken(target, first, count, self._facts)

    def enter(self, queue: Queue, event: Event) -> None:
        """Messages come from another queue. Those that are live here already, because they came by two ways, stay as
        they are, and so do those parked here whose id another message has by now."""
        at, end = event.first, event.first + event.count
        parked = queue.parked.find(event.first, event.count)
        if queue.id_of:
            parked = [piece.part(one, one + 1) for piece in parked for one in range(piece.first, piece.end)]
        known = [(piece.state, piece.first, piece.count) for piece in parked]
        known += [(state, first, count) for state, first, count, _ in whereabouts(queue, event.first, event.count)]
        for state, first, count in sorted(known, key=lambda found: found[1]):
            if first > at:
                self._enter_part(queue, State.LOGGED, event, at, first - at)
            if state in PARKED and not queue.has_taken_id(first):
                self._enter_part(queue, state, event, first, count)
            at = first + count
        if at < end:
            self._enter_part(queue, State.LOGGED, event, at, end - at)
        self.learn_facts(queue, event.first, event.count)
        self.evict(queue)
        self.touch(queue.name)

    def _enter_part(self, queue: Queue, source: State, event: Event, first: int, count: int) -> None:
        self.recorder.event(queue, source, msgspec.structs.replace(event, first=first, count=count))

    def learn_facts(self, queue: Queue, first: int, count: int) -> None:
        """Note the ids and sizes of messages that came from another queue, or from parking, if limits need them."""
        options = queue.options
        if not (options.unique_ids or options.byte_limit):
            return
        for offset in range(first, first + count):
            live, parked = whereabouts(queue, offset, 1), queue.parked.find(offset, 1)
            needs_id = options.unique_ids and (live or parked) and offset not in queue.id_of
            needs_size = options.byte_limit and live and offset not in queue.sizes
            if not (needs_id or needs_size) or (facts := self._facts(offset)) is None:
                continue
            if needs_id:
                queue.id_of[offset] = facts.id
                if live and not _is_held(queue, queue.offset_of.get(facts.id)):
                    queue.offset_of[facts.id] = offset
            if needs_size:
                queue.remember_size(offset, facts.size)

    def _facts(self, offset: int) -> MessageFacts | None:
        fresh = self.recorder.fresh(offset)
        if fresh is None:
            return self._facts_of(offset)
        messages, row = fresh
        return MessageFacts(messages.id(row), len(messages.bodies[row]))

    def evict(self, queue: Queue, before: int = 1 << 62) -> None:
        """Make a full queue keep its limit by ending its oldest messages, those from offset `before` on last."""
        to = queue.options.dead_letter_queue
        if to in self._evicting:
            to = None  # two full queues would send each other their messages without end
        self._evicting.add(queue.name)
        try:
            while (oldest := admission.surplus(queue, before)) is not None:
                first, count, source, priority = oldest
                self.end(queue, source, first, count, "evicted", priority=priority, to=to)
        finally:
            self._evicting.discard(queue.name)

    def clear(
        self,
        queue: Queue,
        lanes: str,
        *,
        who: str | None,
        offsets: Sequence[tuple[int, int]] | None = None,
        reason: str = "cleared",
    ) -> int:
        """End waiting messages: those with a priority, the regular ones, or all, delayed ones included."""
        cleared = 0
        for source, first, count, priority in self._waiting(queue, lanes, offsets):
            self.end(queue, source, first, count, reason, priority=priority, who=who)
            cleared += count
        return cleared

    def move_waiting(self, queue: Queue, to: str, *, who: str | None, offsets: Sequence[tuple[int, int]] | None) -> int:
        """Move waiting messages to another queue, delayed ones included, as many as it has room for."""
        moved = 0
        for source, first, count, priority in self._waiting(queue, "all", offsets):
            for start, size, taken in self.taken_by(to, first, count):
                if taken:
                    self.end(queue, source, start, size, f"{MOVED}{to}", priority=priority, who=who, to=to)
                    moved += size
        return moved

    def _waiting(
        self, queue: Queue, lanes: str, offsets: Sequence[tuple[int, int]] | None
    ) -> list[tuple[State, int, int, int]]:
        queue.release_due(self.recorder.now)
        chosen = [
            (State.QUEUED, first, count, priority)
            for priority, _, level in queue.ready.levels()
            if lanes == "all" or (lanes == "priority") == (priority > 0)
            for first, count, _ in level.runs()
        ]
        if lanes == "all":
            chosen += [(piece.state, piece.first, piece.count, piece.priority) for piece in queue.delayed]
        return chosen if offsets is None else list(_within(chosen, offsets))

    # Time

    def tick(self) -> None:
        """Do what is due, or a slice of it if it is much: then `next_wake` says that there is more."""
        now, left = self.recorder.now, self.slice_size
        while left > 0 and self.wakes and self.wakes[0][0] <= now:
            at, name = heapq.heappop(self.wakes)
            queue = self.queues.get(name)
            if queue is None or queue.wake != at:
                continue
            queue.wake = NEVER
            left -= 1 + self._attend(queue, left)

    def next_wake(self) -> int:
        """When `tick` will next have something to do."""
        wakes = self.wakes
        while wakes:
            at, name = wakes[0]
            queue = self.queues.get(name)
            if queue is not None and queue.wake == at:
                return at
            heapq.heappop(wakes)
        return NEVER

    def _attend(self, queue: Queue, most: int) -> int:
        """Handle what is due in a queue, about `most` items. Returns how many it was."""
        now, done = self.recorder.now, 0
        for lease in islice(queue.overdue_leases(now), most):
            delivering.time_out(self, queue, lease)
            done += 1
        for piece in queue.delayed.alarms(now, most - done):
            self._come_due(queue, piece)
            done += 1
        before = queue.ready.size
        delivering.expire(self, queue)
        done += abs(queue.ready.size - before)
        for tag in islice(queue.ended_waiters(now), max(most - done, 1)):
            self.recorder.close(tag)
            done += 1
        self.after(queue)
        return done

    def _come_due(self, queue: Queue, piece: MessageRange) -> None:
        if piece.deadline <= self.recorder.now:
            delivering.end_expired(self, queue, piece.state, piece.first, piece.count, piece.priority)
        elif piece.state is State.RETRY:
            again = Event(queue.name, State.QUEUED, piece.first, piece.count, attempt=piece.attempt, ahead=piece.front)
            self.recorder.event(queue, State.RETRY, again)

    def touch(self, name: str) -> None:
        """Mark a queue to be looked at before the command is done, after those that are marked already."""
        self._touched.pop(name, None)
        self._touched[name] = None

    def after(self, queue: Queue) -> None:
        """Do what may follow from a change of a queue, and of those it touched."""
        self._touched[queue.name] = None
        self.settle_down()

    def settle_down(self) -> None:
        """For each touched queue: deliver, remove the queue if it is over, and plan the next look at it."""
        while self._touched:
            queue = self.queues.get(next(iter(self._touched)))
            self._touched.pop(next(iter(self._touched)))
            if queue is None:
                continue
            self._spread_credit(queue)
            delivering.dispatch(self, queue)
            if self._is_over(queue):
                self.remove_queue(queue, None)
                continue
            self.plan(queue)

    def _spread_credit(self, queue: Queue) -> None:
        """Offer credit that was given back in this queue to the consumers that share it, here and in other queues."""
        freed, queue.freed = queue.freed, []
        for credit in freed:
            for name, member in credit.members:
                other = self.queues.get(name)
                if other is not None:
                    other.offer(member)
                    if other is not queue:
                        self.touch(name)

    def plan(self, queue: Queue) -> None:
        """Note when to look at a queue next."""
        wake = queue.next_wake()
        if wake < queue.wake:
            queue.wake = wake
            heapq.heappush(self.wakes, (wake, queue.name))

    def _is_over(self, queue: Queue) -> bool:
        if queue.options.auto_destroy is AutoDestroy.DISABLED or queue.name not in self.queues or self.closing:
            return False
        kept = queue.size or queue.parked.size
        match queue.options.auto_destroy:
            case AutoDestroy.NO_MESSAGES:
                return queue.had_messages and not kept
            case AutoDestroy.NO_CONSUMERS:
                return queue.had_consumers and not queue.consumers
            case AutoDestroy.EMPTY:
                return not kept and not queue.consumers and (queue.had_messages or queue.had_consumers)
            case _:
                return False


def _is_held(queue: Queue, offset: int | None) -> bool:
    """Whether the message at this offset still has its id. One in state SUCCESS, whose id another message got, was
    dropped since: that it got too few confirmations is recorded by no event."""
    return offset is not None and all(piece.state is not State.SUCCESS for piece in queue.flights.find(offset, 1))


def whereabouts(queue: Queue, first: int = 0, count: int = NEVER) -> list[tuple[State, int, int, int]]:
    """Which of these messages are live in a queue: state, first offset, count and priority."""
    found = [
        (piece.state, piece.first, piece.count, piece.priority)
        for ranges in (queue.flights, queue.delayed)
        for piece in ranges.find(first, count)
    ]
    found += [(State.QUEUED, run.first, run.count, run.priority) for run in queue.ready.overlap(first, count)]
    return found


def _within(
    found: list[tuple[State, int, int, int]], offsets: Sequence[tuple[int, int]]
) -> Iterator[tuple[State, int, int, int]]:
    """The parts of what was found that lie in these runs of offsets, which are in order and do not overlap."""
    for state, first, count, priority in found:
        at = max(bisect_right(offsets, first, key=itemgetter(0)) - 1, 0)
        for start, size in islice(offsets, at, None):
            low, high = max(first, start), min(first + count, start + size)
            if low < high:
                yield state, low, high - low, priority
            elif start >= first + count:
                break


def _between(lifted: Sequence[ReadyRun], first: int, count: int) -> list[ReadyRun]:
    """Of runs that were taken out of their lanes, the parts that lie in another run."""
    parts = []
    for run in lifted:
        low, high = max(run.first, first), min(run.first + run.count, first + count)
        if low < high:
            parts.append(run._replace(first=low, count=high - low))
    return parts


def _describe(queue: Queue) -> QueueInfo:
    parked = queue.parked.counts
    high, normal = queue.ready.by_rank
    return QueueInfo(
        name=queue.name,
        status=queue.status,
        options=queue.options,
        high=high,
        normal=normal,
        delayed=queue.delayed.size,
        in_flight=queue.flights.size,
        dead=parked.get(State.DEAD, 0),
        invalid=parked.get(State.INVALID, 0),
        not_interested=parked.get(State.NOT_INTERESTED, 0),
        consumers=tuple(queue.consumers),
        counts=dict(queue.counts),
        pulls=len(queue.waiters),
        late_answers=queue.late_answers,
    )
