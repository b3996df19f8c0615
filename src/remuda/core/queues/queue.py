"""One queue's state, and how each record changes it.

`evolve` and `admit` are the only ways in which messages move, for live commands and for recovery alike: every decision
becomes a record, and applying the record changes the queue. So a queue rebuilt from the log equals the one that wrote
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from remuda.core.extensions import ContainedHandler, Strategy
from remuda.core.flow.flow import Flow, signature
from remuda.core.flow.keyed import KeyedMessages
from remuda.core.flow.keys import KEYLESS, KeyColumn
from remuda.core.flow.regrouping import regroup
from remuda.core.journey import Journey
from remuda.core.queues.credit import Consumer
from remuda.core.queues.delayed import DelayedMessages
from remuda.core.queues.leases import Lease, Leases
from remuda.core.queues.notes import Notes
from remuda.core.queues.parked import ParkedMessages
from remuda.core.queues.ranges import MessageRange
from remuda.core.queues.ready import NEVER, ReadyMessages, ReadyRun
from remuda.core.queues.tables import PagedTable
from remuda.model.life import LIVE, is_move
from remuda.model.queues.options import (
    PER_TOPIC,
    Acknowledge,
    AutoDestroy,
    CommitWhen,
    LimitExceeded,
    Persistence,
    QueueOptions,
    Singleton,
    Status,
)
from remuda.model.records import EXPIRED, Event
from remuda.model.state import State
from remuda.model.values.durations import MINUTE

SLICE = 500
"""How many due messages and deliveries are handled at once. Not final: what is final is compiled into each place that
reads it, and the simulation plays other sizes."""
_FETCHED: Final = State.FETCHED
_SUCCESS: Final = State.SUCCESS
_COMPLETED: Final = State.COMPLETED
_QUEUED: Final = State.QUEUED
CONSUMING: Final = frozenset({Status.RUNNING, Status.ONLY_CONSUME})
ACCEPTING: Final = frozenset({Status.RUNNING, Status.ONLY_PUBLISH})


class Queue(Leases):
    """Columns over the log: runs of waiting messages, ranges of those in flight, delayed or parked."""

    def __init__(
        self,
        name: str,
        options: QueueOptions,
        strategy: Strategy,
        handler: ContainedHandler | None = None,
        status: Status = Status.RUNNING,
    ) -> None:
        super().__init__(name)
        self.slice_size = SLICE
        self.options = options
        self.strategy = strategy
        self.handler = handler
        self.status = status
        self.named: frozenset[str] = frozenset()
        """Options set by the first subscriber of a queue that is not initialized yet (Q13)."""
        self.ready = ReadyMessages()
        self.delayed = DelayedMessages()
        self.parked = ParkedMessages()
        self.flow: Flow | None = None
        """How much may go out, and when, where rules say so."""
        self.keyed: KeyedMessages | None = None
        """`ready`, where rules look at keys."""
        self.keys = KeyColumn()
        """The keys of all messages, where rules look at them."""
        self.weights = PagedTable[int, int]()
        """What messages count as, where it is not one."""
        self.shares = False
        """Whether it shares a limit with other queues."""
        self.attempts = PagedTable[int, int]()
        """Attempts that count, of waiting messages that were delivered before."""
        self.offset_of: dict[str, int] = {}
        self.id_of = PagedTable[int, str]()
        self.topic_counts = PagedTable[int, int]()
        """Topics of the messages that have several, where each topic needs a confirmation."""
        self.arrivals = PagedTable[int, str]()
        """Why messages came from another queue, and from which, until they end here."""
        self.sizes = PagedTable[int, int]()
        """Bytes of the bodies, where they count towards a limit."""
        self.bytes = 0
        self.notes = Notes()
        self.counts_confirmations = options.confirmations != 1
        """Stays true when the option is changed back: earlier deliveries still await their confirmations."""
        self.watched: dict[int, int] = {}
        """Offsets of messages whose outcome a producer waits for, with the number of its watch."""
        self.counts: dict[State, int] = {}
        """How many messages ever entered each state here."""
        self.late_answers = 0
        self.had_messages = False
        self.reports = False
        """Whether a message ever came here of whose failure somebody wants to be told."""
        self.journey = Journey()
        """Shared by all queues of a broker."""
        self.last_sent = 0
        """When a message was last fetched, where the queue keeps a pause between messages."""
        self.next_send = 0
        """When that pause ends; 0 if there is none now."""
        self.wake = NEVER
        """When the registry plans to look at the queue next."""
        self.note_rules()

    def note_rules(self, now: int = 0) -> None:
        """After a change of the options, the status or the handler: note what is asked for every message."""
        options = self.options
        self.persistent = options.persistence is Persistence.PERSISTENT
        self.waits = options.acknowledge is Acknowledge.WAIT
        self.asks = options.acknowledge is not Acknowledge.NONE
        self.consumes = self.status in CONSUMING
        self.durable_in = self.persistent and options.commit_when is not CommitWhen.NONE
        self.watches = options.commit_when in (CommitWhen.SENT, CommitWhen.ACKNOWLEDGED)
        self.evicts = options.limit_exceeded is LimitExceeded.DELETE_OLDEST and bool(
            options.message_limit or options.byte_limit
        )
        self.screens = (
            self.status not in ACCEPTING
            or self.handler is not None
            or bool(options.message_limit or options.byte_limit or options.message_size_limit or options.unique_ids)
            or options.singleton is Singleton.REFUSE
        )
        self.pace: int = options.delay_between_messages
        if not self.pace:
            self.next_send = 0
        self.destroys = options.auto_destroy is not AutoDestroy.DISABLED
        self.remembers = bool(options.byte_limit or options.unique_ids or options.confirmations == PER_TOPIC)
        self.replaces = options.debounce > 0 or options.singleton is Singleton.REPLACE
        """Whether the newest of a key takes the place of the one that waits."""
        self.merges = self.replaces or options.throttle > 0 or options.singleton is Singleton.SKIP
        """Whether fewer messages of a key may wait than were published."""
        self.settles = options.debounce > 0 or options.throttle > 0
        """Whether a key has to be quiet before, or after, one of its messages."""
        self.highest = 0 if options.ordered else options.max_priority
        """The highest priority; an ordered queue has one, so that no message overtakes another of its key."""
        self.weighs = options.weighs
        """Whether it counts what messages weigh."""
        if signature(options) != (None if self.flow is None else self.flow.signature):
            regroup(self, now)

    def learn_key(self, offset: int, number: int) -> None:
        """The key of a message becomes known."""
        assert self.keyed is not None
        flights, delayed = self.flights.remove(offset, 1), self.delayed.remove(offset, 1)
        self.keyed.learn(offset, number)
        for piece in flights:
            self.flights.add(piece)
        for piece in delayed:
            self.delayed.add(piece)

    @property
    def rests(self) -> bool:
        """Whether nothing follows from a change, but perhaps an earlier look at the queue."""
        return not (self.consumers or self.waiters or self.freed or self.destroys or self.shares)

    # What a strategy sees

    @property
    def waiting(self) -> int:
        return self.ready.size

    @property
    def members(self) -> Sequence[Consumer]:
        return list(self.consumers.values())

    # Contents

    @property
    def size(self) -> int:
        """Everything not settled: waiting, delayed and in flight."""
        return self.ready.size + self.delayed.size + self.flights.size

    def live(self) -> Iterator[tuple[int, int]]:
        """Runs of every message the queue may still need, parked ones included, in no order."""
        for _, _, level in self.ready.levels():
            for first, count, _ in level.runs():
                yield first, count
        for ranges in (self.flights, self.delayed, self.parked):
            for piece in ranges:
                yield piece.first, piece.count

    # Time

    def pauses(self, now: int) -> bool:
        """Whether the queue's pause between messages is not over yet (Q8)."""
        pause = self.pace
        end = self.last_sent + pause
        # A time still to come was written by a clock that was ahead of this one.
        self.next_send = end if pause and now < end <= now + pause else 0
        return self.next_send > 0

    def least_wake(self) -> int:
        """No later than `next_wake`, and quickly found."""
        if self.next_send or self._waiter_ends or self.flow is not None:
            return 0
        ends = self._lease_ends
        least = ends[0][0] if ends else NEVER
        if self.ready.soonest < least:
            least = self.ready.soonest
        return self.delayed.soonest if self.delayed.soonest < least else least

    def next_wake(self, now: int) -> int:
        """When something here becomes due, if nothing else happens."""
        soonest = self.ready.soonest
        if self.delayed.soonest < soonest:
            soonest = self.delayed.soonest
        end = self.next_end()
        if end < soonest:
            soonest = end
        if self.next_send and self.ready.size and (self.consumers or self.waiters) and self.next_send < soonest:
            soonest = self.next_send
        elif self.flow is not None and self.ready.size and self.consumes and (self.consumers or self.waiters):
            opens = self.flow.opens(now, self.flights.size)
            if now < opens < soonest:
                soonest = opens
        return soonest

    # How records change the queue

    def admit(self, first: int, count: int, created: int, priority: int, expires: int | None, due: int | None) -> None:
        """Messages enter the queue."""
        counts = self.counts
        counts[_QUEUED] = counts.get(_QUEUED, 0) + count
        self.had_messages = True
        options = self.options
        deadline = NEVER if expires is None and not options.message_timeout else self._deadline(created, expires)
        if priority > self.highest:
            priority = self.highest
        if due is not None and due > created:
            self.delayed.add(MessageRange(first, count, State.QUEUED, deadline, priority, due=due))
        elif self.delayed.soonest <= created and self.is_behind(priority, False, created):
            self._wait_behind(MessageRange(first, count, State.QUEUED, deadline, priority, due=created))
        else:
            self.ready.add(priority, False, first, count, deadline)

    def admit_settling(
        self, first: int, count: int, created: int, priority: int, expires: int | None, due: int | None
    ) -> None:
        """`admit` where a key has to be quiet before, or after, one of its messages."""
        options, keyed = self.options, self.keyed
        assert keyed is not None
        for number, start, size in self.keys.runs(first, count):
            later = due
            if number != KEYLESS and options.debounce:
                later = max(keyed.settles(number, created, options.debounce, options.max_wait), due or 0)
            elif number != KEYLESS:
                keyed.quieten(number, created + options.throttle)
            self.admit(start, size, created, priority, expires, later)

    def _claim_ids(self, piece: MessageRange) -> None:
        if self.id_of:
            for offset in range(piece.first, piece.end):
                if offset in self.id_of:
                    self.offset_of.setdefault(self.id_of[offset], offset)

    def has_taken_id(self, offset: int) -> bool:
        """Whether a live message has the id of this parked one."""
        identity = self.id_of.get(offset)
        return identity is not None and identity in self.offset_of

    def remember_size(self, offset: int, size: int) -> None:
        self.bytes += size - self.sizes.get(offset, 0)
        self.sizes[offset] = size

    def remember_id(self, identity: str, offset: int) -> None:
        self.offset_of[identity] = offset
        self.id_of[offset] = identity

    def evolve(self, event: Event, time: int, lease: int, lifted: Sequence[ReadyRun] | None = None) -> None:
        """Apply one event. `lease` is the delivery that a fetch belongs to; `lifted` are the waiting messages, if they
        were already taken out of their lanes."""
        first, count, state = event.first, event.count, event.state
        if self.journey.to is not None and (state is not State.QUEUED or self.journey.to != self.name):
            self.journey.to = None
        if event.to is None:  # what moves on has not ended
            counts = self.counts
            counts[state] = counts.get(state, 0) + count
        if state is _FETCHED:
            self.last_sent = time if self.pace else 0
            if self.flow is not None:
                self.flow.spend(first, count, time, self.weights)
            attempts, flights = self.attempts, self.flights
            for run in self._lift(first, count) if lifted is None else lifted:
                again = False
                if attempts.size:
                    again = run.first in attempts
                    self._forget_attempts(run.first, run.count)
                flights.add(  # by position, since one is made for every delivery
                    MessageRange(
                        run.first, run.count, _FETCHED, run.deadline, run.priority, event.attempt, lease, 0, False,
                        None, time, again,
                    )
                )  # fmt: skip
            return
        if state is _COMPLETED:
            self._leave_flight(first, count)
            return
        if state is _SUCCESS:
            if self.counts_confirmations:
                for piece in self.flights.remove(first, count):
                    self.flights.add(msgspec.structs.replace(piece, state=State.SUCCESS))
            return
        match state:
            case State.KICKED:
                self.flights.remove(first, count)
                self._free(first, count)
            case State.RETRY:
                for piece in self.flights.remove(first, count):
                    self.delayed.add(
                        MessageRange(
                            piece.first, piece.count, State.RETRY, piece.deadline, piece.priority, event.attempt,
                            due=event.due or time, front=event.ahead, reason=event.reason, time=time, redelivered=True,
                        )
                    )  # fmt: skip
            case State.QUEUED:
                self._enqueue(event, time)
            case State.DEAD | State.INVALID | State.NOT_INTERESTED:
                self._end(event, time, lifted)
            case _:
                raise AssertionError(f"no event carries state {state}")

    def complete(self, first: int, count: int) -> None:
        """Messages in flight are acknowledged and leave the queue."""
        self.journey.to = None
        counts = self.counts
        counts[_SUCCESS] = counts.get(_SUCCESS, 0) + count
        counts[_COMPLETED] = counts.get(_COMPLETED, 0) + count
        self._leave_flight(first, count)

    def _leave_flight(self, first: int, count: int) -> None:
        self.flights.remove(first, count)
        if (
            self.topic_counts.size or self.sizes.size or self.arrivals.size or self.id_of.size or self.keys.size
            or self.notes.table.size or self.weights.size
        ):  # fmt: skip
            self._free(first, count)

    def _end(self, event: Event, time: int, lifted: Sequence[ReadyRun] | None) -> None:
        left = self._leave(event.first, event.count) if lifted is None else [_waiting(run) for run in lifted]
        if event.to is not None and event.reason != EXPIRED:
            self.journey.begin(event.to, left)
        for piece in left:
            if self.attempts:
                self._forget_attempts(piece.first, piece.count)
            if event.to is not None:
                if self.notes.table.size:
                    self.journey.notes |= self.notes.take(piece.first, piece.count)
                if self.weights.size:
                    found = {at: self.weights.get(at, 1) for at in range(piece.first, piece.end)}
                    self.journey.weights.update((at, weight) for at, weight in found.items() if weight > 1)
            else:
                ended = MessageRange(
                    piece.first, piece.count, event.state, priority=piece.priority, reason=event.reason, time=time
                )
                self.parked.add_merged(ended, within=MINUTE)
        self._free(event.first, event.count, parked=event.to is None)

    # Delayed messages join their lane when they are due. They are in state QUEUED all along, so no event records it.
    # Where many are due at once, they join a slice at a time, and messages that come meanwhile wait behind them.

    def advance(self, time: int, count: int = 1) -> bool:
        """Bring the next `count` due messages into their lanes; False if more are due."""
        delayed = self.delayed
        if delayed.soonest > time:
            return True
        self.release_due(time, max(self.slice_size, count))
        return not delayed.has_due(time)

    def has_next(self, time: int) -> bool:
        """Whether a message can be delivered now."""
        flow = self.flow
        if flow is not None:
            return self._may_go(flow, time)
        while not self.ready.size:
            if self.advance(time):
                break
        return self.ready.size > 0

    def _may_go(self, flow: Flow, time: int) -> bool:
        """Whether the rules of flow let a message go now."""
        if flow.room(time, self.flights.size) <= 0:
            return False
        whole = False
        while not (self.ready.size > 0 if self.keyed is None else self.keyed.is_open(time)):
            if whole:
                return False
            whole = self.advance(time)
        return True

    def take(self, count: int, time: int, newest: bool = False) -> list[ReadyRun]:
        """Take the next messages out of their lanes, as many as may go now."""
        if self.flow is not None:
            count = min(count, self.flow.room(time, self.flights.size))
            if self.weighs and self.weights.size and count > 1:
                count = 1  # what it counts as decides whether another may go
            if self.keyed is not None:
                return self.keyed.take_turns(count, time)
        return self.ready.take_newest(count) if newest else self.ready.take(count)

    def release_due(self, time: int, most: int = NEVER, level: tuple[int, bool] | None = None) -> None:
        """Bring due messages into their lanes, or into this one: all of them, or about as many."""
        for piece in self.delayed.due(time, most, level):
            self._join(piece)

    def join_oldest(self, time: int) -> None:
        """Bring due messages into the lanes in which they may be the oldest."""
        for level in self.delayed.due_levels(time):
            full = any(lane.size for priority, front, lane in self.ready.levels() if (priority, front) == level)
            if level[1] or not full or self.keyed is not None:
                self.release_due(time, self.slice_size if self.keyed is None else NEVER, level)

    def wait_until(self, due: int, first: int, count: int) -> None:
        """Take messages back out of their lanes, since they are not due yet."""
        for run in self.ready.remove(first, count):
            self.delayed.add(MessageRange(run.first, run.count, State.QUEUED, run.deadline, run.priority, due=due))

    def is_behind(self, priority: int, front: bool, time: int) -> bool:
        """Whether due messages must still join a lane before one that comes now."""
        level = (priority, front)
        if not self.delayed.has_due(time, level):
            return False
        self.release_due(time, self.slice_size, level)
        return self.delayed.has_due(time, level)

    def _wait_behind(self, piece: MessageRange) -> None:
        delayed = self.delayed
        due = delayed.behind((piece.priority, piece.front), piece.due)
        delayed.add(msgspec.structs.replace(piece, due=due, order=delayed.next_order()))

    def _join(self, piece: MessageRange) -> None:
        if piece.redelivered:
            for offset in range(piece.first, piece.end):
                self.attempts[offset] = piece.attempt
        self.ready.add(piece.priority, piece.front, piece.first, piece.count, piece.deadline)

    def _lift(self, first: int, count: int) -> list[ReadyRun]:
        """Take messages out of their lanes, and those that are due but have not joined theirs yet."""
        lifted = self.ready.remove(first, count)
        if self.delayed.size and sum(run.count for run in lifted) < count:
            for piece in self.delayed.remove(first, count):
                if piece.redelivered:
                    for offset in range(piece.first, piece.end):
                        self.attempts[offset] = piece.attempt
                lifted.append(ReadyRun(piece.first, piece.count, piece.deadline, piece.priority))
        return lifted

    def forget(self, first: int, count: int) -> None:
        """Delete parked messages for good."""
        for piece in self.parked.remove(first, count):
            self._free(piece.first, piece.count)

    def abandon(self, lease: Lease) -> None:
        """Drop messages that got some of their confirmations but not all: they stay in state SUCCESS."""
        for first, count in lease.runs:
            for piece in self.flights.find(first, count):
                if piece.lease == lease.token and piece.state is State.SUCCESS:
                    self.let_go(piece)

    def let_go(self, piece: MessageRange) -> None:
        """Drop messages in flight that no consumer will answer any more."""
        self.flights.remove(piece.first, piece.count)
        self._free(piece.first, piece.count)

    def _count(self, state: State, count: int) -> None:
        counts = self.counts
        counts[state] = counts.get(state, 0) + count

    def _enqueue(self, event: Event, time: int) -> None:
        self.had_messages = True
        here = self._leave(event.first, event.count)
        if not here:
            level = min(event.priority, self.highest)
            here = [MessageRange(event.first, event.count, State.LOGGED, priority=level)]
            if self.journey.notes:
                for offset in range(event.first, event.first + event.count):
                    pairs = self.journey.notes.pop(offset, None)
                    if pairs is not None:
                        self.notes.put(offset, pairs)
            if self.journey.weights:
                for offset in range(event.first, event.first + event.count):
                    weight = self.journey.weights.pop(offset, 1)
                    if weight > 1:
                        self.weights[offset] = weight
            if event.reason is not None:
                self.arrivals.update(dict.fromkeys(range(event.first, event.first + event.count), event.reason))
        if self.journey.to is not None:
            here = [part for piece in here for part in self.journey.arrived(piece)]
        for piece in here:
            deadline = piece.deadline
            returned = piece.state in LIVE
            if not returned:
                deadline = min(self._deadline(time, None), deadline)
                self._claim_ids(piece)
            back = MessageRange(
                piece.first, piece.count, State.QUEUED, deadline, piece.priority, event.attempt,
                due=max(event.due or 0, time), front=event.ahead,
                redelivered=event.attempt > 0 or (returned and event.attempt == 0),
            )  # fmt: skip
            if back.due > time:
                self.delayed.add(back)
            elif self.delayed.soonest <= time and self.is_behind(back.priority, back.front, time):
                self._wait_behind(back)
            else:
                self._join(back)

    def moved_here(self, found: Sequence[tuple[State, int, int]]) -> list[tuple[State, int, int]]:
        """Of messages of this queue, those that an operator moved here: whoever waits for one follows it."""
        return [
            (state, offset, 1)
            for state, first, count in found
            for offset in range(first, first + count)
            if is_move(self.arrivals.get(offset, ""))
        ]

    def _leave(self, first: int, count: int) -> list[MessageRange]:
        found: list[MessageRange] = []
        for ranges in (self.flights, self.delayed, self.parked):
            if ranges.size:
                found += ranges.remove(first, count)
        if sum(piece.count for piece in found) < count:
            found += [_waiting(run) for run in self.ready.remove(first, count)]
        return found

    def _deadline(self, since: int, expires: int | None) -> int:
        timeout = self.options.message_timeout
        if not timeout:
            return NEVER if expires is None else expires
        return since + timeout if expires is None else min(since + timeout, expires)

    def _forget_attempts(self, first: int, count: int) -> None:
        for offset in range(first, first + count):
            self.attempts.pop(offset, None)

    def _free(self, first: int, count: int, *, parked: bool = False) -> None:
        """Forget what is kept about these messages. A parked one keeps its id, which others may use meanwhile, for when
        it comes back."""
        if self.keys.size and not parked:
            self.keys.forget(first, count)
        if self.notes.table.size and not parked:
            self.notes.forget(first, count)
        if self.weights.size and not parked:
            for offset in range(first, first + count):
                self.weights.pop(offset, None)
        if not (self.topic_counts.size or self.sizes.size or self.arrivals.size or self.id_of.size):
            return
        if self.topic_counts and not parked:
            for offset in range(first, first + count):
                self.topic_counts.pop(offset, None)
        if self.sizes:
            for offset in range(first, first + count):
                self.bytes -= self.sizes.pop(offset, 0)
        if self.arrivals and not parked:
            for offset in range(first, first + count):
                self.arrivals.pop(offset, None)
        if self.id_of:
            for offset in range(first, first + count):
                identity = self.id_of.get(offset) if parked else self.id_of.pop(offset, None)
                if identity is not None and self.offset_of.get(identity) == offset:
                    del self.offset_of[identity]


def _waiting(run: ReadyRun) -> MessageRange:
    return MessageRange(run.first, run.count, State.QUEUED, run.deadline, run.priority)
