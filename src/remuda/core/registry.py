"""The queues of one broker: how they are created, changed and removed, and when something is next due in each."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import msgspec

from remuda.core import admission, delivering
from remuda.core.extensions import (
    ContainedHandler,
    FactsOf,
    HandlerFor,
    MessageFacts,
    StrategyFor,
    contained_handler,
    no_handler,
    unknown,
)
from remuda.core.flow.keys import number_of
from remuda.core.flow.learning import charge_unknown, learn_keys, unlearned
from remuda.core.flow.limits import SharedLimits
from remuda.core.flow.showing import shown
from remuda.core.journey import Journey
from remuda.core.queues.credit import Credit
from remuda.core.queues.plans import Plan, plan_of
from remuda.core.queues.queue import SLICE, Queue
from remuda.core.queues.ranges import MessageRange
from remuda.core.queues.ready import NEVER, ReadyRun
from remuda.core.queues.strategies import by_type, contained
from remuda.core.recorder import Recorder
from remuda.core.routing import Routing
from remuda.model.errors import Conflict, InvalidOption, NotFound
from remuda.model.life import PARKED, reason_of_arrival
from remuda.model.messages import cell
from remuda.model.operations.commands import (
    ConfigureQueue,
    DeclareQueue,
    NamedOptions,
    PauseKey,
    RemoveQueue,
    SetStatus,
)
from remuda.model.operations.results import Declared, QueueInfo, differences
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.notices import NoticeKind
from remuda.model.queues.options import AutoDestroy, QueueOptions, Status
from remuda.model.records import CONFIGURED, CREATED, KEY_PAUSED, REMOVED, STATUS, Event, QueueChange
from remuda.model.state import State
from remuda.model.values.durations import micros
from remuda.model.values.texts import no_queue, read_name

_MOST_PLANS: Final = 10_000


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
        self.journey = Journey()
        self.credits: dict[str, Credit] = {}
        """Credit that consumers share, by group."""
        self.limits = SharedLimits()
        self.slice_size = SLICE
        self._strategy_for = strategy_for
        self._handler_for = handler_for
        self._facts_of = facts_of
        self.closing = False
        """Whether consumers leave because the broker closes: then `auto_destroy` does not remove their queues."""
        self.ended: list[tuple[str, int, int, str]] = []
        """Messages that ended without success, and without an answer, of which somebody wants to be told."""
        self.report: Callable[[str, int, int, str], None] = lambda queue, first, count, reason: None
        self.wakes: list[tuple[int, str]] = []
        """When to look at which queue, a heap. The first is no later than `next_wake`."""
        self.on_wake: Callable[[int], None] = lambda wake: None
        """Called with each time that comes into the plan, so that whoever keeps the clock wakes up in time."""
        self._plans: dict[tuple[str, ...], Plan] = {}
        """By route, as long as no queue changes."""
        self.touched: dict[str, None] = {}
        self._evicting: set[str] = set()
        self.replayed_at = 0
        """In recovery, when the change was made that is being replayed."""
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
        self._change_options(queue, options, command.who)
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

    def pause_key(self, command: PauseKey) -> None:
        queue = self.queue(command.queue)
        if queue.keyed is None:
            raise Conflict(
                f"queue {queue.name!r} has no rule that looks at keys, so none can be paused alone; "
                "set fair=True or another rule per key, or pause the queue"
            )
        span = None if command.duration == "" else micros(command.duration)
        until = NEVER if span is None else self.recorder.now + span if span else 0
        change = QueueChange(
            KEY_PAUSED, queue.name, self.recorder.now, first=until, who=command.who, named=(command.key,)
        )
        self.recorder.change(change)
        queue.keyed.pause(number_of(command.key), until)
        self.after(queue)

    def flow(self, name: str, limit: int) -> FlowInfo:
        return shown(self.queue(name), self.facts, self.recorder.now, limit)

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
        queue = Queue(name, options, contained(self._strategy_for, name, options), None, status)
        queue.handler = self._handler(name, options)
        queue.journey = self.journey
        self.changed(queue)
        self.queues[name] = queue
        self.routing.changed()
        if options.is_channel:
            self.routing.open_channel(name, options.topics, options.patterns)
        return queue

    def _change_options(self, queue: Queue, options: QueueOptions, who: str | None = None) -> None:
        self.recorder.change(QueueChange(CONFIGURED, queue.name, self.recorder.now, options, who=who))
        asks = self.asks_more(queue, options)
        self.apply_options(queue, options)
        if asks:
            self.learn_all(queue)

    def apply_options(self, queue: Queue, options: QueueOptions) -> None:
        queue.counts_confirmations |= options.confirmations != 1
        queue.options = options
        queue.strategy = contained(self._strategy_for, queue.name, options)
        queue.handler = self._handler(queue.name, options)
        self.changed(queue)
        queue.offer_all()
        self.routing.changed()
        self.routing.close_channel(queue.name)
        if options.is_channel:
            self.routing.open_channel(queue.name, options.topics, options.patterns)

    def changed(self, queue: Queue) -> None:
        """After a change of its options, its status or its handler."""
        now = self.replayed_at or self.recorder.now
        queue.note_rules(now)
        for mate in self.limits.join(queue, now):
            self.touch(mate)
        self._plans.clear()

    def plan_for(self, routes: Sequence[tuple[str, ...]]) -> Plan | None:
        """What the queues on these routes ask for. None unless all of them exist and are initialized."""
        if len(routes) > 1:
            return plan_of(dict.fromkeys(name for route in routes for name in route), self.queues)
        route = routes[0]
        plan = self._plans.get(route)
        if plan is None:
            plan = plan_of(dict.fromkeys(route), self.queues)
            if plan is not None:
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[route] = plan
        return plan

    def initialize(self, queue: Queue, named: NamedOptions) -> None:
        """Give a queue that was only subscribed to so far its type; options its subscriber set stay (Q13). It may hold
        messages all the same, where a power loss took the record that had initialized it."""
        options = queue.options
        if named is not None:
            values = {name: value for name, value in named.items() if name not in queue.named}
            options = queue.options.with_values(values)
        self._change_options(queue, options)
        self._set_status(queue, Status.RUNNING, None)
        self.evict(queue)
        self.touch(queue.name)

    def drop(self, name: str) -> None:
        self.queues.pop(name, None)
        for mate in self.limits.leave(name, self.replayed_at or self.recorder.now):
            self.touch(mate)
        self._plans.clear()
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
            if queue.reports:
                self.ended.append((queue.name, first, count, "queue removed"))
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
        return contained_handler(self._handler_for, name, options)

    def _set_status(self, queue: Queue, status: Status, who: str | None) -> None:
        if status is queue.status:
            return
        self.recorder.change(QueueChange(STATUS, queue.name, self.recorder.now, status=status, who=who))
        queue.status = status
        self.changed(queue)
        self.recorder.notice(NoticeKind.STATUS_CHANGED, queue, detail=status.value)

    # Messages that end, or go on elsewhere

    def end(
        self, queue: Queue, source: State, first: int, count: int, reason: str | None, *, state: State = State.DEAD,
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

    def move(self, queue: Queue, piece: MessageRange, to: str, who: str | None) -> int:
        """Move waiting messages to the queue `to`, as many as it takes; the others stay as they are. What they wait for
        and the attempts that counted go with them. Returns how many moved."""
        moved = 0
        for first, count, taken in self.taken_by(to, piece.first, piece.count):
            if taken:
                watches = self.recorder.unwatch(queue, first, count)
                self._end_part(
                    queue, piece.state, first, count, None, State.DEAD, piece.priority, to, None, 0, who,
                    None, None, piece,
                )  # fmt: skip
                for offset, number in watches.items():
                    lives = bool(whereabouts(self.queues[to], offset, 1))
                    self.recorder.follow(self.queues[to], offset, number, lives=lives)
                moved += count
        return moved

    def _end_part(
        self, queue: Queue, source: State, first: int, count: int, reason: str | None, state: State, priority: int,
        to: str | None, consumer: str | None, attempt: int, who: str | None, detail: str | None, lifted: Any,
        carried: MessageRange | None = None,
    ) -> None:  # fmt: skip
        event = Event(
            queue.name, state, first, count, consumer, attempt, reason, who=who, detail=detail, to=to
        )  # fmt: skip
        self.recorder.event(queue, source, event, lifted=lifted)
        if to is None and consumer is None and queue.reports:
            self.ended.append((queue.name, first, count, reason or "ended"))
        if to is not None:
            self.queues[to].reports |= queue.reports
            why = reason_of_arrival(reason, queue.name)
            arrived = Event(to, State.QUEUED, first, count, reason=why, priority=priority, who=who)
            if carried is not None:
                due = carried.due if carried.due > self.recorder.now else None
                arrived = msgspec.structs.replace(arrived, attempt=carried.attempt, due=due)
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
        return admission.taken(target, first, count, self.facts)

    def check_taken(self, name: str, pieces: Iterable[MessageRange]) -> None:
        """Raise the reason if another queue will not take all of these messages."""
        for piece in pieces:
            for first, _, taken in self.taken_by(name, piece.first, piece.count):
                if not taken:
                    raise admission.objection(self.queue(name), self.facts(first))

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
        """Note the ids, sizes and keys of messages that came from another queue, where the queue's rules need them."""
        self.learn_sizes(queue, first, count)
        learn_keys(queue, first, count, self.facts, lambda offset: bool(whereabouts(queue, offset, 1)))
        if not queue.options.unique_ids:
            return
        for offset in range(first, first + count):
            live, parked = whereabouts(queue, offset, 1), queue.parked.find(offset, 1)
            if (live or parked) and offset not in queue.id_of and (facts := self.facts(offset)) is not None:
                queue.id_of[offset] = facts.id
                if live and not _is_held(queue, queue.offset_of.get(facts.id)):
                    queue.offset_of[facts.id] = offset

    def charge_unknown(self, queue: Queue) -> None:
        charge_unknown(queue, self.facts)

    @staticmethod
    def asks_more(queue: Queue, options: QueueOptions) -> bool:
        """Whether rules are switched on that need to know ids, sizes or keys of what the queue holds already."""
        before = queue.options
        keys = options.takes_turns and (not before.takes_turns or options.flow_key != before.flow_key)
        return bool(options.byte_limit > 0 == before.byte_limit or options.unique_ids > before.unique_ids or keys)

    def learn_all(self, queue: Queue) -> None:
        self.learn_line(queue)
        for first, count in sorted(queue.live()):
            self.learn_facts(queue, first, count)

    def learn_line(self, queue: Queue) -> None:
        """`learn_facts` of what waits and has no known key."""
        for first, count in unlearned(queue):
            self.learn_facts(queue, first, count)

    def learn_sizes(self, queue: Queue, first: int, count: int) -> None:
        if not queue.options.byte_limit:
            return
        for _, start, size, _ in whereabouts(queue, first, count):
            for offset in range(start, start + size):
                if offset not in queue.sizes and (facts := self.facts(offset)) is not None:
                    queue.remember_size(offset, facts.size)

    def fitting(self, queue: Queue, first: int, count: int) -> int:
        """How many of these messages, from the first on, would still be within the limit of bytes."""
        limit = queue.options.byte_limit
        if not limit:
            return count
        left = limit - queue.bytes
        for taken in range(count):
            facts = self.facts(first + taken)
            left -= 0 if facts is None else facts.size
            if left < 0:
                return taken
        return count

    def facts(self, offset: int) -> MessageFacts | None:
        fresh = self.recorder.fresh(offset)
        if fresh is None:
            return self._facts_of(offset)
        messages, row = fresh
        return MessageFacts(
            messages.id(row), len(messages.bodies[row]), cell(messages.key, row), cell(messages.headers, row)
        )

    def evict(self, queue: Queue, before: int = 1 << 62) -> None:
        """Make a full queue keep its limit by ending its oldest messages, those from offset `before` on last."""
        to = queue.options.dead_letter_queue
        if to in self._evicting:
            to = None  # two full queues would send each other their messages without end
        self._evicting.add(queue.name)
        try:
            while (oldest := admission.surplus(queue, self.recorder.now, before)) is not None:
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
        for piece in self.waiting(queue, lanes, offsets):
            self.end(queue, piece.state, piece.first, piece.count, reason, priority=piece.priority, who=who)
            cleared += piece.count
        return cleared

    def waiting(
        self, queue: Queue, lanes: str = "all", offsets: Sequence[tuple[int, int]] | None = None
    ) -> list[MessageRange]:
        """Messages that wait for their turn, their time or a retry, each with what it waits for."""
        queue.release_due(self.recorder.now)
        chosen = [
            MessageRange(first, count, State.QUEUED, deadline, priority)
            for priority, _, level in queue.ready.levels()
            if lanes == "all" or (lanes == "priority") == (priority > 0)
            for first, count, deadline in level.runs()
        ]
        if lanes == "all":
            chosen += queue.delayed
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
        self.touched.pop(name, None)
        self.touched[name] = None

    def follow(self, queue: Queue) -> None:
        """Have what follows from a change of a queue done before the command is."""
        if queue.consumers or queue.waiters or queue.freed or queue.destroys or queue.shares:
            self.touch(queue.name)
        elif queue.wake > queue.least_wake():  # it rests, but may have to be looked at earlier
            self.plan(queue)

    def after(self, queue: Queue) -> None:
        """Do what may follow from a change of a queue, and of those it touched."""
        if queue.rests:
            self.plan(queue)
        else:
            self.touched[queue.name] = None
        if self.touched or self.ended:
            self.settle_down()

    def settle_down(self) -> None:
        """For each touched queue: deliver, remove the queue if it is over, and plan the next look at it."""
        while self.touched:
            queue = self.queues.get(next(iter(self.touched)))
            self.touched.pop(next(iter(self.touched)))
            if queue is None:
                continue
            self._spread_credit(queue)
            if queue.shares:
                self._dispatch_shared(queue)
            else:
                delivering.dispatch(self, queue)
            if self._is_over(queue):
                self.remove_queue(queue, None)
                continue
            self.plan(queue)
        while self.ended:
            self.report(*self.ended.pop(0))

    def _dispatch_shared(self, queue: Queue) -> None:
        """What one queue gives back of a shared limit goes first to the queue that was served longest ago."""
        for mate in self.limits.mates(queue):
            delivering.dispatch(self, mate)
            if mate is not queue:
                self.plan(mate)

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
        if queue.wake <= queue.least_wake():
            return
        wake = queue.next_wake(self.recorder.now)
        if wake < queue.wake:
            queue.wake = wake
            heapq.heappush(self.wakes, (wake, queue.name))
            self.on_wake(wake)

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


def _within(found: list[MessageRange], offsets: Sequence[tuple[int, int]]) -> Iterator[MessageRange]:
    """The parts of what was found that lie in these runs of offsets, which are in order and do not overlap."""
    for piece in found:
        at = max(bisect_right(offsets, piece.first, key=itemgetter(0)) - 1, 0)
        for start, size in islice(offsets, at, None):
            if start >= piece.end:
                break
            if start + size > piece.first:
                yield piece.part(start, start + size)


def _between(lifted: Sequence[ReadyRun], first: int, count: int) -> list[ReadyRun]:
    """Of runs that were taken out of their lanes, the parts that lie in another run."""
    parts = []
    for run in lifted:
        low, high = max(run.first, first), min(run.first + run.count, first + count)
        if low < high:
            parts.append(ReadyRun(low, high - low, run.deadline, run.priority))
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
