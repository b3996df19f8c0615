"""One queue's state, and how each record changes it.

`evolve` and `admit` are the only ways in which messages move, for live commands and for recovery alike: whoever
decides writes an event, and the event is played. So a queue rebuilt from the log is the queue that wrote it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from remuda.core.credit import Consumer, Credit, room
from remuda.core.delayed import DelayedMessages
from remuda.core.extensions import ContainedHandler, Strategy
from remuda.core.ranges import MessageRange, ParkedMessages, RangeMap
from remuda.core.ready import NEVER, ReadyMessages, ReadyRun
from remuda.core.tables import PagedTable
from remuda.model.durations import MINUTE
from remuda.model.message import MAX_PRIORITY
from remuda.model.options import Acknowledge, AutoDestroy, CommitWhen, Persistence, QueueOptions, Status
from remuda.model.records import Event
from remuda.model.state import LIVE, State

SLICE: Final = 500
"""How much that time demands is done at once."""
_STALE: Final = 1000
_AT_ONCE: Final = frozenset({CommitWhen.NONE, CommitWhen.RECEIVED})
CONSUMING: Final = frozenset({Status.RUNNING, Status.ONLY_CONSUME})
ACCEPTING: Final = frozenset({Status.RUNNING, Status.ONLY_PUBLISH})


class Lease(msgspec.Struct):
    """A delivery that awaits its answer, or its hand-over."""

    token: int
    consumers: tuple[str, ...]
    runs: list[tuple[int, int]]
    deadline: int
    open: int
    """Messages of it still unanswered."""
    confirmed: set[str]
    declined: set[str]
    needed: int = 1
    """Confirmations that complete its message."""
    answered: bool = False
    """Whether some consumer has answered for some of it."""
    pulled: bool = False
    """Whether it was asked for: then it takes up nobody's credit, and no other delivery waits for its answer."""
    sent: int = 0
    """Messages of it that were sent ahead."""
    awaited: set[str] = set()
    """Consumers to whom it was sent ahead and who have not taken it yet: until then it is still the queue's."""
    taken: set[str] = set()
    """Consumers who have it in their hands."""
    kicks: bool = False
    """Whether taking it is the end of it: no answer will come."""
    uncounted: bool = False
    """Whether it was reclaimed by a consumer that has yet to subscribe again, and then takes up its credit."""

    @property
    def ahead(self) -> bool:
        """Whether it was sent ahead: a window holds it back, not its consumers' credit."""
        return self.sent > 0

    @property
    def awaits_hand_over(self) -> bool:
        """Whether it was sent ahead and nobody has it yet."""
        return bool(self.awaited) and not self.taken

    @property
    def silent(self) -> list[str]:
        """Consumers who have not answered."""
        if not self.confirmed and not self.declined:
            return list(self.consumers)
        return [name for name in self.consumers if name not in self.confirmed and name not in self.declined]


class Waiter(msgspec.Struct, frozen=True):
    """A pull request that found nothing and waits."""

    consumer: str
    tag: int
    count: int
    newest: bool
    until: int
    clear_after: str = "none"


class Queue:
    """Columns over the log: runs of waiting messages, ranges of those in flight, delayed or parked."""

    def __init__(
        self,
        name: str,
        options: QueueOptions,
        strategy: Strategy,
        handler: ContainedHandler | None = None,
        status: Status = Status.RUNNING,
    ) -> None:
        self.name = name
        self.slice_size = SLICE
        self.options = options
        self.strategy = strategy
        self.handler = handler
        self.status = status
        self.named: frozenset[str] = frozenset()
        """Options that the first subscriber of a queue not yet initialized asked for by name (Q13)."""
        self.ready = ReadyMessages()
        self.flights = RangeMap()
        self.delayed = DelayedMessages()
        self.parked = ParkedMessages()
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
        self.counts_confirmations = options.confirmations != 1
        """Also after the option was changed: deliveries from before still await theirs."""
        self.leases: dict[int, Lease] = {}
        self.settled_ahead: dict[int, Lease] = {}
        """Deliveries sent ahead to several that are over for those who took them, and still go to the others."""
        self.freed: list[Credit] = []
        """Shared credit that was given back here: others may have waited for it."""
        self.unanswered = 0
        """Deliveries that no consumer has answered yet."""
        self.consumers: dict[str, Consumer] = {}
        self.waiters: dict[int, Waiter] = {}
        """Pull requests that wait, by tag, the oldest first."""
        self.watched: dict[int, int] = {}
        """Offsets whose fate a producer waits for, with the watch's number."""
        self.counts: dict[State, int] = {}
        """How many messages ever entered each state here."""
        self.late_answers = 0
        self.had_messages = False
        self.had_consumers = False
        self.next_send = 0
        self.wake = NEVER
        """When the queue next needs attention, as far as its owner knows."""
        self.serving = 0
        self._ready_consumers: list[tuple[int, int, int, str]] = []
        self._lease_ends: list[tuple[int, int]] = []
        self._waiter_ends: list[tuple[int, int]] = []
        self.note_rules()

    def note_rules(self) -> None:
        """The options, the status or the handler have changed: which short cuts are still right."""
        options = self.options
        usual = (
            self.status is Status.RUNNING
            and self.handler is None
            and options.auto_destroy is AutoDestroy.DISABLED
            and not self.counts_confirmations
        )
        self.persistent = options.persistence is Persistence.PERSISTENT
        self.waits = options.acknowledge is Acknowledge.WAIT
        self.plain_in = usual and not (
            options.message_limit
            or options.byte_limit
            or options.message_size_limit
            or options.message_timeout
            or options.unique_ids
            or options.commit_when not in _AT_ONCE
            or options.max_priority != MAX_PRIORITY
        )
        self.durable_in = self.persistent and options.commit_when is not CommitWhen.NONE
        self.plain_out = usual and options.acknowledge is not Acknowledge.NONE and not options.delay_between_messages

    # What a strategy sees

    @property
    def waiting(self) -> int:
        return self.ready.size

    @property
    def members(self) -> Sequence[Consumer]:
        return list(self.consumers.values())

    def next_ready(self) -> Consumer | None:
        """Of the consumers that can take a message, one of the highest priority: who was served longest ago, then who
        came first."""
        heap = self._ready_consumers
        while heap:
            _, served, joined, name = heap[0]
            consumer = self.consumers.get(name)
            if consumer is not None and consumer.queued and (consumer.served, consumer.joined) == (served, joined):
                if room(consumer, self.waits) > 0:
                    return consumer
                consumer.queued = False
            heapq.heappop(heap)
        return None

    # Consumers

    def join(self, consumer: Consumer) -> None:
        self.consumers[consumer.name] = consumer
        self.had_consumers = True
        consumer.credit.members.append((self.name, consumer))
        for lease in self.leases.values():
            if lease.uncounted and consumer.name in lease.consumers:
                lease.uncounted = False
                consumer.unanswered += lease.open
                consumer.credit.used += lease.open
        self.offer(consumer)

    def leave(self, name: str) -> Consumer | None:
        consumer = self.consumers.pop(name, None)
        if consumer is not None:
            consumer.queued = False
            consumer.credit.used -= consumer.unanswered
            consumer.unanswered = 0
            consumer.credit.members = [one for one in consumer.credit.members if one[1] is not consumer]
            if consumer.credit.members:
                self.freed.append(consumer.credit)
            for token, lease in list(self.settled_ahead.items()):
                lease.awaited.discard(name)
                if not lease.awaited:
                    del self.settled_ahead[token]
        return consumer

    def offer(self, consumer: Consumer) -> None:
        """A consumer may be able to take a message."""
        if not consumer.queued and room(consumer, self.waits) > 0:
            consumer.queued = True
            place = (-consumer.priority, consumer.served, consumer.joined, consumer.name)
            heapq.heappush(self._ready_consumers, place)

    def offer_all(self) -> None:
        for consumer in self.consumers.values():
            self.offer(consumer)

    def served(self, consumer: Consumer) -> None:
        """A consumer was just given messages."""
        self.serving += 1
        consumer.served = self.serving
        consumer.queued = False
        self.offer(consumer)

    # What others ask

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

    def next_wake(self) -> int:
        """When time alone will change something here."""
        soonest = self.ready.soonest
        if self.delayed.soonest < soonest:
            soonest = self.delayed.soonest
        ends = self._lease_ends
        while ends and ends[0][1] not in self.leases and ends[0][1] not in self.settled_ahead:
            heapq.heappop(ends)
        if ends and ends[0][0] < soonest:
            soonest = ends[0][0]
        pulls = self._waiter_ends
        while pulls and pulls[0][1] not in self.waiters:
            heapq.heappop(pulls)
        if pulls and pulls[0][0] < soonest:
            soonest = pulls[0][0]
        if self.next_send and self.ready.size and (self.consumers or self.waiters) and self.next_send < soonest:
            soonest = self.next_send
        return soonest

    def overdue_leases(self, now: int) -> Iterator[Lease]:
        while self._lease_ends and self._lease_ends[0][0] <= now:
            token = heapq.heappop(self._lease_ends)[1]
            lease = self.leases.get(token)
            if lease is None and (over := self.settled_ahead.pop(token, None)) is not None:
                self._arrived(over, over.awaited)
            # A lease that was renewed stands here once more, at its later end.
            if lease is not None and lease.deadline <= now:
                yield lease

    def ended_waiters(self, now: int) -> Iterator[int]:
        """Pull requests whose time is up wait no longer; gives their tags."""
        while self._waiter_ends and self._waiter_ends[0][0] <= now:
            tag = heapq.heappop(self._waiter_ends)[1]
            if self.waiters.pop(tag, None) is not None:
                yield tag

    def wait(self, waiter: Waiter) -> None:
        self.waiters[waiter.tag] = waiter
        heapq.heappush(self._waiter_ends, (waiter.until, waiter.tag))
        if len(self._waiter_ends) > 2 * len(self.waiters) + _STALE:
            self._waiter_ends = [(one.until, one.tag) for one in self.waiters.values()]
            heapq.heapify(self._waiter_ends)

    # Leases

    def grant(self, lease: Lease) -> None:
        self.leases[lease.token] = lease
        self._note_end(lease)
        if lease.pulled:
            return
        self.unanswered += 1
        for name in lease.consumers:
            consumer = self.consumers.get(name)
            if consumer is None:
                continue
            if name in lease.awaited:
                consumer.under_way += lease.sent
            else:
                consumer.unanswered += lease.open
                consumer.credit.used += lease.open

    def extend(self, lease: Lease, deadline: int) -> None:
        lease.deadline = deadline
        self._note_end(lease)

    def _note_end(self, lease: Lease) -> None:
        heapq.heappush(self._lease_ends, (lease.deadline, lease.token))
        if len(self._lease_ends) > 2 * len(self.leases) + _STALE:
            # One long lease at the top would keep the ends of all that were answered since.
            held = {**self.settled_ahead, **self.leases}
            self._lease_ends = [(one.deadline, token) for token, one in held.items()]
            heapq.heapify(self._lease_ends)

    def handed_over(self, lease: Lease, name: str) -> None:
        """The messages of a delivery are in a consumer's hands."""
        lease.taken.add(name)
        if name in lease.awaited:
            self._arrived(lease, [name])
            lease.awaited.discard(name)
            if not lease.awaited:
                self.settled_ahead.pop(lease.token, None)

    def _arrived(self, lease: Lease, names: Iterable[str]) -> None:
        """A delivery is under way to these consumers no longer."""
        for name in names:
            consumer = self.consumers.get(name)
            if consumer is not None:
                consumer.under_way -= lease.sent
                self.offer(consumer)

    def answered(self, lease: Lease) -> None:
        if not lease.answered:
            lease.answered = True
            self.unanswered -= not lease.pulled

    def give_back(self, lease: Lease, names: Sequence[str], count: int) -> None:
        """These consumers have `count` messages of a delivery less to answer for."""
        if lease.pulled or lease.ahead:
            return
        for name in names:
            consumer = self.consumers.get(name)
            if consumer is not None:
                consumer.unanswered -= count
                consumer.credit.used -= count
                self.offer(consumer)
                if len(consumer.credit.members) > 1:
                    self.freed.append(consumer.credit)

    def revoke(self, lease: Lease, *, over: bool = True) -> None:
        """A delivery is over; also for those to whom it is still under way, if it failed and will be made anew."""
        if self.leases.pop(lease.token, None) is None:
            return
        self.answered(lease)
        if lease.open > 0:
            self.give_back(lease, lease.silent, lease.open)
            lease.open = 0
        if lease.awaited:
            if lease.taken and over:
                self.settled_ahead[lease.token] = lease
            else:
                self._arrived(lease, lease.awaited)
                lease.awaited.clear()

    # How records change it

    def admit(self, first: int, count: int, created: int, priority: int, expires: int | None, due: int | None) -> None:
        """Messages enter the queue."""
        self._count(State.QUEUED, count)
        self.had_messages = True
        deadline = self._deadline(created, expires)
        priority = min(priority, self.options.max_priority)
        if due is not None and due > created:
            self.delayed.add(MessageRange(first, count, State.QUEUED, deadline, priority, due=due))
        elif self.delayed.soonest <= created and self.is_behind(priority, False, created):
            self._stand_behind(MessageRange(first, count, State.QUEUED, deadline, priority, due=created))
        else:
            self.ready.add(priority, False, first, count, deadline)

    def _claim_ids(self, piece: MessageRange) -> None:
        if self.id_of:
            for offset in range(piece.first, piece.end):
                if offset in self.id_of:
                    self.offset_of.setdefault(self.id_of[offset], offset)

    def has_taken_id(self, offset: int) -> bool:
        """Whether another message that is live has the id of this one, which is parked."""
        identity = self.id_of.get(offset)
        return identity is not None and identity in self.offset_of

    def remember_size(self, offset: int, size: int) -> None:
        self.bytes += size - self.sizes.get(offset, 0)
        self.sizes[offset] = size

    def remember_id(self, identity: str, offset: int) -> None:
        self.offset_of[identity] = offset
        self.id_of[offset] = identity

    def evolve(self, event: Event, time: int, lease: int, lifted: Sequence[ReadyRun] | None = None) -> None:
        """Play one event. `lease` names the delivery that a fetch belongs to; `lifted` are the waiting messages, if
        they were taken out of the line already."""
        first, count, state = event.first, event.count, event.state
        self._count(state, count)
        match state:
            case State.FETCHED:
                for run in self._lift(first, count) if lifted is None else lifted:
                    again = run.first in self.attempts
                    if self.attempts:
                        self._forget_attempts(run.first, run.count)
                    self.flights.add(
                        MessageRange(
                            run.first, run.count, State.FETCHED, run.deadline, run.priority, event.attempt, lease,
                            time=time, redelivered=again,
                        )
                    )  # fmt: skip
            case State.SUCCESS:
                if self.counts_confirmations:
                    for piece in self.flights.remove(first, count):
                        self.flights.add(msgspec.structs.replace(piece, state=State.SUCCESS))
            case State.COMPLETED | State.KICKED:
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

    def _end(self, event: Event, time: int, lifted: Sequence[ReadyRun] | None) -> None:
        left = self._leave(event.first, event.count) if lifted is None else [_waiting(run) for run in lifted]
        for piece in left:
            if self.attempts:
                self._forget_attempts(piece.first, piece.count)
            if event.to is None:
                ended = MessageRange(
                    piece.first, piece.count, event.state, priority=piece.priority, reason=event.reason, time=time
                )
                self.parked.add_merged(ended, within=MINUTE)
        self._free(event.first, event.count, parked=event.to is None)

    # Delayed messages whose time has come join the line. They were queued all along, so no event tells of it; where
    # many do at once, they join it a slice at a time, and whatever comes meanwhile stands behind them.

    def advance(self, time: int, count: int = 1) -> bool:
        """Have the next `count` messages stand in line; False if there are more that are due."""
        delayed = self.delayed
        if delayed.soonest > time:
            return True
        for piece in delayed.due(time, max(self.slice_size, count)):
            self._join(piece)
        return not delayed.has_due(time)

    def has_next(self, time: int) -> bool:
        """Whether a message stands in line."""
        while not self.ready.size:
            if self.advance(time):
                break
        return self.ready.size > 0

    def release_due(self, time: int) -> None:
        """Have all that is due stand in line."""
        for piece in self.delayed.due(time, NEVER):
            self._join(piece)

    def is_behind(self, priority: int, front: bool, time: int) -> bool:
        """Whether others belong in a line before who comes to it now."""
        level = (priority, front)
        if not self.delayed.has_due(time, level):
            return False
        for piece in self.delayed.due(time, self.slice_size, level):
            self._join(piece)
        return self.delayed.has_due(time, level)

    def _stand_behind(self, piece: MessageRange) -> None:
        self.delayed.add(msgspec.structs.replace(piece, order=self.delayed.next_order()))

    def _join(self, piece: MessageRange) -> None:
        if piece.redelivered:
            for offset in range(piece.first, piece.end):
                self.attempts[offset] = piece.attempt
        self.ready.add(piece.priority, piece.front, piece.first, piece.count, piece.deadline)

    def _lift(self, first: int, count: int) -> list[ReadyRun]:
        """Take messages out of the line, also those whose delay is over and who were not taken to it yet."""
        lifted = self.ready.remove(first, count)
        if self.delayed.size and sum(run.count for run in lifted) < count:
            for piece in self.delayed.remove(first, count):
                if piece.redelivered:
                    for offset in range(piece.first, piece.end):
                        self.attempts[offset] = piece.attempt
                lifted.append(ReadyRun(piece.first, piece.count, piece.deadline, piece.priority))
        return lifted

    def keep(self, name: str) -> None:
        """A consumer leaves and keeps what it holds: from now on as if it had asked for it."""
        for lease in self.leases.values():
            if name in lease.consumers and not lease.pulled:
                if not lease.answered:
                    self.unanswered -= 1
                lease.pulled = True

    def forget(self, first: int, count: int) -> int:
        """Parked messages go for good."""
        gone = self.parked.remove(first, count)
        for piece in gone:
            self._free(piece.first, piece.count)
        return sum(piece.count for piece in gone)

    def abandon(self, lease: Lease) -> None:
        """What was confirmed too seldom leaves the queue as it is."""
        for first, count in lease.runs:
            for piece in self.flights.find(first, count):
                if piece.lease == lease.token and piece.state is State.SUCCESS:
                    self.let_go(piece)

    def let_go(self, piece: MessageRange) -> None:
        """Messages in flight that nobody will answer for any more."""
        self.flights.remove(piece.first, piece.count)
        self._free(piece.first, piece.count)

    def _count(self, state: State, count: int) -> None:
        counts = self.counts
        counts[state] = counts.get(state, 0) + count

    def _enqueue(self, event: Event, time: int) -> None:
        self.had_messages = True
        here = self._leave(event.first, event.count)
        if not here:
            level = min(event.priority, self.options.max_priority)
            here = [MessageRange(event.first, event.count, State.LOGGED, priority=level)]
            if event.reason is not None:
                self.arrivals.update(dict.fromkeys(range(event.first, event.first + event.count), event.reason))
        for piece in here:
            deadline = piece.deadline
            returned = piece.state in LIVE
            if not returned:
                deadline = self._deadline(time, None)
                self._claim_ids(piece)
            back = MessageRange(
                piece.first, piece.count, State.QUEUED, deadline, piece.priority, event.attempt,
                due=max(event.due or 0, time), front=event.ahead, redelivered=returned and event.attempt >= 0,
            )  # fmt: skip
            if back.due > time:
                self.delayed.add(back)
            elif self.delayed.soonest <= time and self.is_behind(back.priority, back.front, time):
                self._stand_behind(back)
            else:
                self._join(back)

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
        """Others may have the ids of these messages. A parked message remembers its own, for when it comes back."""
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
