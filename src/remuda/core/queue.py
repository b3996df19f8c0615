"""One queue's state, and how each record changes it.

`evolve` and `admit` are the only ways in which messages move, for live commands and for recovery alike: whoever
decides writes an event, and the event is played. So a queue rebuilt from the log is the queue that wrote it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from remuda.core.extensions import Consumer, DeliveryHandler, Strategy
from remuda.core.lane import NEVER, Lane, Run
from remuda.core.pieces import Piece, Pieces
from remuda.model.durations import MINUTE
from remuda.model.options import QueueOptions, Status
from remuda.model.records import Event
from remuda.model.state import LIVE, State

_STALE: Final = 1000


class Lease(msgspec.Struct):
    """A delivery that awaits its answer."""

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


class Waiter(msgspec.Struct, frozen=True):
    """A pull request that found nothing and waits."""

    consumer: str
    count: int
    newest: bool
    until: int
    request: int
    clear_after: str = "none"


class Queue:
    """Columns over the log: lanes of waiting messages, pieces of those in flight, delayed or parked."""

    def __init__(
        self,
        name: str,
        options: QueueOptions,
        strategy: Strategy,
        handler: DeliveryHandler | None = None,
        status: Status = Status.RUNNING,
    ) -> None:
        self.name = name
        self.options = options
        self.strategy = strategy
        self.handler = handler
        self.status = status
        self.high = Lane()
        self.returned = Lane()
        self.normal = Lane()
        self.flights = Pieces()
        self.delayed = Pieces()
        self.parked = Pieces()
        self.attempts: dict[int, int] = {}
        """Attempts made so far of messages that came back."""
        self.offset_of: dict[str, int] = {}
        self.id_of: dict[int, str] = {}
        self.topic_counts: dict[int, int] = {}
        """Topics of the messages that have several, where each topic needs a confirmation."""
        self.counts_confirmations = options.confirmations != 1
        """Also after the option was changed: deliveries from before still await theirs."""
        self.leases: dict[int, Lease] = {}
        self.consumers: dict[str, Consumer] = {}
        self.waiters: deque[Waiter] = deque()
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
        self._dues: list[tuple[int, int]] = []
        self._releases: list[tuple[int, int]] = []
        self._lease_ends: list[tuple[int, int]] = []

    # What a strategy sees

    @property
    def waiting(self) -> int:
        return self.high.size + self.returned.size + self.normal.size

    @property
    def unanswered(self) -> int:
        return sum(1 for lease in self.leases.values() if not lease.confirmed and not lease.declined)

    @property
    def members(self) -> Sequence[Consumer]:
        return list(self.consumers.values())

    # What others ask

    @property
    def remaining(self) -> tuple[int, int]:
        """Messages that wait: of high priority, and others."""
        return self.high.size, self.returned.size + self.normal.size

    @property
    def soonest(self) -> int:
        """No waiting message expires before this."""
        return min(self.high.soonest, self.returned.soonest, self.normal.soonest)

    @property
    def size(self) -> int:
        """Everything not settled: waiting, delayed and in flight."""
        return self.waiting + self.delayed.size + self.flights.size

    def lanes(self) -> tuple[Lane, Lane, Lane]:
        return self.high, self.returned, self.normal

    def peek(self, count: int) -> list[Run]:
        """The next messages to go out."""
        found: list[Run] = []
        for lane in self.lanes():
            if count <= 0:
                break
            if lane.size:
                found += lane.peek(count)
                count -= min(count, lane.size)
        return found

    def live(self) -> Iterator[tuple[int, int]]:
        """Runs of every message the queue may still need, parked ones included, in no order."""
        for lane in self.lanes():
            for first, count, _ in lane.runs():
                yield first, count
        for pieces in (self.flights, self.delayed, self.parked):
            for piece in pieces:
                yield piece.first, piece.count

    # Time

    def next_wake(self) -> int:
        """When time alone will change something here."""
        soonest = self.soonest
        if self._dues:
            soonest = min(soonest, self._dues[0][0])
        while self._lease_ends and self._lease_ends[0][1] not in self.leases:
            heapq.heappop(self._lease_ends)
        if self._lease_ends:
            soonest = min(soonest, self._lease_ends[0][0])
        for waiter in self.waiters:
            soonest = min(soonest, waiter.until)
        if self.next_send and self.waiting and self.consumers:
            soonest = min(soonest, self.next_send)
        return soonest

    def overdue_leases(self, now: int) -> Iterator[Lease]:
        while self._lease_ends and self._lease_ends[0][0] <= now:
            lease = self.leases.get(heapq.heappop(self._lease_ends)[1])
            # A lease that was renewed stands here once more, at its later end.
            if lease is not None and lease.deadline <= now:
                yield lease

    def due_pieces(self, now: int) -> Iterator[Piece]:
        """Delayed messages whose time, or deadline, has come."""
        while self._dues and self._dues[0][0] <= now:
            piece = self.delayed.holding(heapq.heappop(self._dues)[1])
            # What was settled or cleared while it waited is no longer here, or waits for another time.
            if piece is not None and min(piece.due, piece.deadline) <= now:
                yield piece

    def grant(self, lease: Lease) -> None:
        self.leases[lease.token] = lease
        self._note_end(lease)
        for name in lease.consumers:
            if name in self.consumers:
                self.consumers[name].unanswered += 1

    def extend(self, lease: Lease, deadline: int) -> None:
        lease.deadline = deadline
        self._note_end(lease)

    def _note_end(self, lease: Lease) -> None:
        heapq.heappush(self._lease_ends, (lease.deadline, lease.token))
        if len(self._lease_ends) > 2 * len(self.leases) + _STALE:
            # One long lease at the top would keep the ends of all that were answered since.
            self._lease_ends = [(held.deadline, token) for token, held in self.leases.items()]
            heapq.heapify(self._lease_ends)

    def revoke(self, lease: Lease) -> None:
        if self.leases.pop(lease.token, None) is not None:
            for name in lease.consumers:
                if name not in lease.confirmed and name not in lease.declined:
                    self.answered_by(name)

    def answered_by(self, consumer: str) -> None:
        member = self.consumers.get(consumer)
        if member is not None and member.unanswered:
            member.unanswered -= 1

    # How records change it

    def admit(self, first: int, count: int, created: int, high: bool, expires: int | None, due: int | None) -> None:
        """Messages enter the queue."""
        self.release_due(created)
        self._count(State.QUEUED, count)
        self.had_messages = True
        deadline = self._deadline(created, expires)
        if due is not None and due > created:
            self.delay(Piece(first, count, State.QUEUED, deadline=deadline, high=high, due=due))
        else:
            (self.high if high else self.normal).append(first, count, deadline)

    def _claim_ids(self, piece: Piece) -> None:
        if self.id_of:
            for offset in range(piece.first, piece.end):
                if offset in self.id_of:
                    self.offset_of[self.id_of[offset]] = offset

    def remember_id(self, identity: str, offset: int) -> None:
        self.offset_of[identity] = offset
        self.id_of[offset] = identity

    def evolve(self, event: Event, time: int, lease: int, lifted: list[Piece] | None = None) -> None:
        """Play one event. `lease` names the delivery that a fetch belongs to; `lifted` are the messages, if at hand."""
        first, count, state = event.first, event.count, event.state
        self.release_due(time)
        self._count(state, count)
        match state:
            case State.FETCHED:
                for piece in self._leave_lanes(first, count):
                    self._forget_attempts(piece)
                    fetched = msgspec.structs.replace(
                        piece, state=State.FETCHED, attempt=event.attempt, lease=lease, time=time
                    )
                    self.flights.add(fetched)
            case State.SUCCESS:
                if self.counts_confirmations:
                    for piece in self.flights.remove(first, count):
                        self.flights.add(msgspec.structs.replace(piece, state=State.SUCCESS))
            case State.COMPLETED | State.KICKED:
                self.flights.remove(first, count)
                self._free(first, count)
            case State.RETRY:
                for piece in self.flights.remove(first, count):
                    back = msgspec.structs.replace(
                        piece,
                        state=State.RETRY,
                        lease=-1,
                        attempt=event.attempt,
                        due=event.due or time,
                        ahead=event.ahead,
                    )
                    self.delay(back)
            case State.QUEUED:
                self._enqueue(event, time)
            case State.DEAD | State.INVALID | State.NOT_INTERESTED:
                for piece in self._leave(first, count) if lifted is None else lifted:
                    self._forget_attempts(piece)
                    ended = msgspec.structs.replace(
                        piece, state=state, reason=event.reason, time=time, lease=-1, due=0, deadline=NEVER
                    )
                    self.parked.add_merged(ended, within=MINUTE)
                self._free(first, count, parked=True)
            case _:
                raise AssertionError(f"no event carries state {state}")

    def release_due(self, time: int) -> None:
        """Delayed messages whose time has come join the line. They were queued all along, so no event tells of it.

        Every record first does this for its own time: played back, it finds the line as it was when it was written.
        """
        while self._releases and self._releases[0][0] <= time:
            piece = self.delayed.holding(heapq.heappop(self._releases)[1])
            if piece is not None and piece.state is State.QUEUED and piece.due <= time:
                self._release(piece)

    def _release(self, piece: Piece) -> None:
        self.delayed.remove(piece.first, piece.count)
        if piece.attempt:
            for offset in range(piece.first, piece.end):
                self.attempts[offset] = piece.attempt
        lane = self.high if piece.high else self.returned if piece.ahead else self.normal
        lane.append(piece.first, piece.count, piece.deadline)

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

    def let_go(self, piece: Piece) -> None:
        """Messages in flight that nobody will answer for any more."""
        self.flights.remove(piece.first, piece.count)
        self._free(piece.first, piece.count)

    def _count(self, state: State, count: int) -> None:
        self.counts[state] = self.counts.get(state, 0) + count

    def _enqueue(self, event: Event, time: int) -> None:
        self.had_messages = True
        here = self._leave(event.first, event.count)
        if not here:
            here = [Piece(event.first, event.count, State.LOGGED, high=event.high)]
        for piece in here:
            if piece.state not in LIVE:
                piece = msgspec.structs.replace(piece, deadline=self._deadline(time, None))
                self._claim_ids(piece)
            if event.attempt:
                for offset in range(piece.first, piece.end):
                    self.attempts[offset] = event.attempt
            if event.due is not None and event.due > time:
                self.delay(
                    msgspec.structs.replace(
                        piece, state=State.QUEUED, lease=-1, attempt=event.attempt, due=event.due, ahead=event.ahead
                    )
                )
            else:
                lane = self.high if piece.high else self.returned if event.ahead else self.normal
                lane.append(piece.first, piece.count, piece.deadline)

    def delay(self, piece: Piece) -> None:
        self.delayed.add(piece)
        self._plan(piece)

    def _plan(self, piece: Piece) -> None:
        heapq.heappush(self._dues, (min(piece.due, piece.deadline), piece.first))
        if piece.state is State.QUEUED:
            heapq.heappush(self._releases, (piece.due, piece.first))

    def _leave_lanes(self, first: int, count: int) -> list[Piece]:
        found: list[Piece] = []
        for lane in self.lanes():
            if lane.size:
                high = lane is self.high
                for start, size, deadline in lane.remove(first, count):
                    found.append(Piece(start, size, State.QUEUED, deadline=deadline, high=high))
                if sum(piece.count for piece in found) == count:
                    break
        return found

    def _leave(self, first: int, count: int) -> list[Piece]:
        found: list[Piece] = []
        for pieces in (self.flights, self.delayed, self.parked):
            if pieces.size:
                found += pieces.remove(first, count)
        rest = self.delayed.holding(first + count)
        if rest is not None and rest.first == first + count:
            self._plan(rest)
        if sum(piece.count for piece in found) < count:
            found += self._leave_lanes(first, count)
        return found

    def _deadline(self, since: int, expires: int | None) -> int:
        own = since + self.options.message_timeout if self.options.message_timeout else NEVER
        return own if expires is None else min(own, expires)

    def _forget_attempts(self, piece: Piece) -> None:
        if self.attempts:
            for offset in range(piece.first, piece.end):
                self.attempts.pop(offset, None)

    def _free(self, first: int, count: int, *, parked: bool = False) -> None:
        """Others may have the ids of these messages. A parked message remembers its own, for when it comes back."""
        if self.topic_counts and not parked:
            for offset in range(first, first + count):
                self.topic_counts.pop(offset, None)
        if self.id_of:
            for offset in range(first, first + count):
                identity = self.id_of.get(offset) if parked else self.id_of.pop(offset, None)
                if identity is not None and self.offset_of.get(identity) == offset:
                    del self.offset_of[identity]
