"""Messages go into flight and land: what is done for every pull and its answer. In C where that could be built."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.core.effects import Dispatch
from remuda.core.ranges import MessageRange, RangeMap
from remuda.model.records import Event, Events
from remuda.model.state import State
from remuda.native import in_flight

STALE: Final = 1000
"""How many deadlines of deliveries that are over a heap may hold, beyond twice the number of open ones."""
_FETCHED: Final = State.FETCHED
_SUCCESS: Final = State.SUCCESS
_COMPLETED: Final = State.COMPLETED

Run = tuple[int, int, int, int]
"""The first offset, the count, when they expire, and the priority."""
Runs = list[tuple[int, int]]


class Lease(msgspec.Struct, gc=False):
    """A delivery that awaits its answer, or its hand-over."""

    token: int
    consumers: tuple[str, ...]
    runs: list[tuple[int, int]]
    deadline: int
    open: int
    """Messages of it still unanswered."""
    confirmed: frozenset[str] = frozenset()
    declined: frozenset[str] = frozenset()
    needed: int = 1
    """Confirmations that complete its message."""
    answered: bool = False
    """Whether some consumer has answered for some of it."""
    pulled: bool = False
    """Whether it was pulled: then it uses no credit, and no other delivery waits for its answer."""
    sent: int = 0
    """Messages of it that were sent ahead."""
    awaited: frozenset[str] = frozenset()
    """Consumers to which it was sent ahead and which have not taken it yet: until then it belongs to the queue."""
    taken: frozenset[str] = frozenset()
    """Consumers that have taken it."""
    kicks: bool = False
    """Whether it ends when it is taken: no answer will come."""
    uncounted: bool = False
    """Whether it was reclaimed by a consumer that has yet to subscribe again, and uses its credit from then on."""

    @property
    def ahead(self) -> bool:
        """Whether it was sent ahead, limited by a window instead of its consumers' credit."""
        return self.sent > 0

    @property
    def awaits_hand_over(self) -> bool:
        """Whether it was sent ahead and nobody has it yet."""
        return bool(self.awaited) and not self.taken

    @property
    def silent(self) -> list[str]:
        """Consumers that have not answered."""
        if not self.confirmed and not self.declined:
            return list(self.consumers)
        return [name for name in self.consumers if name not in self.confirmed and name not in self.declined]


class PlainInFlight:
    """Messages in flight, the leases they are under, and when each ends."""

    flights: RangeMap
    leases: dict[int, Lease]
    _lease_ends: list[tuple[int, int]]
    """Deadline and token of each lease, and of some that are over, as a heap."""

    def send(
        self, name: str, run: Run, token: int, consumer: str, tag: int, now: int, deadline: int,
        remaining: tuple[int, int],
    ) -> tuple[Dispatch, Events]:  # fmt: skip
        """Put a run, which was taken out of its lane, into flight to a consumer that pulls, as its first attempt.
        Returns the delivery and the record to keep of it."""
        first, count, expires, priority = run
        # By position, since these are made for every delivery.
        self.flights.add(MessageRange(first, count, _FETCHED, expires, priority, 1, token, 0, False, None, now))
        runs = [(first, count)]
        self.leases[token] = Lease(token, (consumer,), runs, deadline, count, pulled=True)
        heapq.heappush(self._lease_ends, (deadline, token))
        if len(self._lease_ends) > 2 * len(self.leases) + STALE:
            self._drop_stale_ends()
        dispatch = Dispatch(name, consumer, tag, token, runs, [1], deadline, remaining)
        return dispatch, Events(token, now, [Event(name, _FETCHED, first, count, consumer, 1)])

    def complete(
        self, name: str, token: int, consumer: str | None, runs: Runs | None, at: int, now: int
    ) -> Events | None:
        """As `land`, for messages that are acknowledged. Returns the record to keep of that, from position `at` on."""
        piece = self.land(token, consumer, runs)
        if piece is None:
            return None
        first, count = piece.first, piece.count
        rows = [Event(name, _SUCCESS, first, count, consumer), Event(name, _COMPLETED, first, count)]
        return Events(at, now, rows)

    def land(self, token: int, consumer: str | None, runs: Runs | None) -> MessageRange | None:
        """Take one run of a delivery, which may be all of it, out of flight. Returns None and changes nothing if its
        first consumer is another, or it is not one run."""
        lease = self.leases.get(token)
        if lease is None or consumer is None:
            return None
        if runs is None:
            runs = lease.runs
        if lease.consumers[0] != consumer or len(runs) != 1:
            return None
        first, count = runs[0]
        piece = self.flights.take_whole(first, count, token)
        if piece is None:
            return None
        if not lease.pulled:
            self.answered(lease)
        lease.open = max(lease.open - count, 0)
        if not lease.open:
            del self.leases[token]
        return piece

    def answered(self, lease: Lease) -> None:
        """Some consumer has answered for some of it."""
        raise NotImplementedError

    def _drop_stale_ends(self) -> None:
        """Drop deadlines of leases that are over: they would pile up behind one long lease at the top of the heap."""
        raise NotImplementedError


if TYPE_CHECKING or in_flight is None:
    InFlight = PlainInFlight
else:
    in_flight.set_up(Lease, MessageRange, Dispatch, Event, Events, (_FETCHED, _SUCCESS, _COMPLETED), heapq.heappush)
    InFlight = in_flight.InFlight
