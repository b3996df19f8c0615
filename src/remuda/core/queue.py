"""One queue's state, and how each record changes it.

`evolve` and `admit` are the only ways in which messages move, for live commands and for recovery alike: every decision
becomes a record, and applying the record changes the queue. So a queue rebuilt from the log equals the one that wrote
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from remuda.core.credit import Consumer
from remuda.core.delayed import DelayedMessages
from remuda.core.extensions import ContainedHandler, Strategy
from remuda.core.leases import Lease, Leases
from remuda.core.parked import ParkedMessages
from remuda.core.ranges import MessageRange
from remuda.core.ready import NEVER, ReadyMessages, ReadyRun
from remuda.core.tables import PagedTable
from remuda.model.durations import MINUTE
from remuda.model.message import MAX_PRIORITY
from remuda.model.options import Acknowledge, AutoDestroy, CommitWhen, Persistence, QueueOptions, Status
from remuda.model.records import Event
from remuda.model.state import LIVE, State

SLICE: Final = 500
"""How many due messages and deliveries are handled at once."""
_AT_ONCE: Final = frozenset({CommitWhen.NONE, CommitWhen.RECEIVED})
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
        """Stays true when the option is changed back: earlier deliveries still await their confirmations."""
        self.watched: dict[int, int] = {}
        """Offsets of messages whose outcome a producer waits for, with the number of its watch."""
        self.counts: dict[State, int] = {}
        """How many messages ever entered each state here."""
        self.late_answers = 0
        self.had_messages = False
        self.next_send = 0
        self.wake = NEVER
        """When the registry plans to look at the queue next."""
        self.note_rules()

    def note_rules(self) -> None:
        """After a change of the options, the status or the handler: note which fast paths apply."""
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

    def next_wake(self) -> int:
        """When something here becomes due, if nothing else happens."""
        soonest = self.ready.soonest
        if self.delayed.soonest < soonest:
            soonest = self.delayed.soonest
        end = self.next_end()
        if end < soonest:
            soonest = end
        if self.next_send and self.ready.size and (self.consumers or self.waiters) and self.next_send < soonest:
            soonest = self.next_send
        return soonest

    # How records change the queue

    def admit(self, first: int, count: int, created: int, priority: int, expires: int | None, due: int | None) -> None:
        """Messages enter the queue."""
        self._count(State.QUEUED, count)
        self.had_messages = True
        deadline = self._deadline(created, expires)
        priority = min(priority, self.options.max_priority)
        if due is not None and due > created:
            self.delayed.add(MessageRange(first, count, State.QUEUED, deadline, priority, due=due))
        elif self.delayed.soonest <= created and self.is_behind(priority, False, created):
            self._wait_behind(MessageRange(first, count, State.QUEUED, deadline, priority, due=created))
        else:
            self.ready.add(priority, False, first, count, deadline)

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
        if event.to is None:  # what moves on has not ended
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

    # Delayed messages join their lane when they are due. They are in state QUEUED all along, so no event records it.
    # Where many are due at once, they join a slice at a time, and messages that come meanwhile wait behind them.

    def advance(self, time: int, count: int = 1) -> bool:
        """Bring the next `count` due messages into their lanes; False if more are due."""
        delayed = self.delayed
        if delayed.soonest > time:
            return True
        for piece in delayed.due(time, max(self.slice_size, count)):
            self._join(piece)
        return not delayed.has_due(time)

    def has_next(self, time: int) -> bool:
        """Whether a message can be delivered now."""
        while not self.ready.size:
            if self.advance(time):
                break
        return self.ready.size > 0

    def release_due(self, time: int) -> None:
        """Bring all due messages into their lanes."""
        for piece in self.delayed.due(time, NEVER):
            self._join(piece)

    def is_behind(self, priority: int, front: bool, time: int) -> bool:
        """Whether due messages must still join a lane before one that comes now."""
        level = (priority, front)
        if not self.delayed.has_due(time, level):
            return False
        for piece in self.delayed.due(time, self.slice_size, level):
            self._join(piece)
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
                self._wait_behind(back)
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
        """Forget what is kept about these messages. A parked one keeps its id, which others may use meanwhile, for when
        it comes back."""
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
