"""A run of messages is put into flight, and lands: what is done for every delivery that was asked for. In C where that
could be built."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.core.ranges import MessageRange, RangeMap
from remuda.model.state import State
from remuda.native import air

STALE: Final = 1000
"""How many ends of deliveries that are over may be kept beside twice those that are not."""
_FETCHED: Final = State.FETCHED

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
    """Whether it was asked for: then it takes up nobody's credit, and no other delivery waits for its answer."""
    sent: int = 0
    """Messages of it that were sent ahead."""
    awaited: frozenset[str] = frozenset()
    """Consumers to whom it was sent ahead and who have not taken it yet: until then it is still the queue's."""
    taken: frozenset[str] = frozenset()
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


class PlainAir:
    """Messages in flight, the leases they are under, and when each ends."""

    flights: RangeMap
    leases: dict[int, Lease]
    _lease_ends: list[tuple[int, int]]
    """Deadline and token of each lease, and of some that are over, as a heap."""

    def lift(
        self, first: int, count: int, expires: int, priority: int, token: int, consumer: str, now: int, deadline: int
    ) -> Runs:
        """Put a run that left the line into flight, to whoever asked, for the first time; gives it as runs."""
        # By position, since these are made for every delivery.
        self.flights.add(MessageRange(first, count, _FETCHED, expires, priority, 1, token, 0, False, None, now))
        runs = [(first, count)]
        self.leases[token] = Lease(token, (consumer,), runs, deadline, count, pulled=True)
        heapq.heappush(self._lease_ends, (deadline, token))
        if len(self._lease_ends) > 2 * len(self.leases) + STALE:
            self._drop_stale_ends()
        return runs

    def land(self, token: int, consumer: str | None, runs: Runs | None) -> MessageRange | None:
        """Take one run of a delivery, which may be all of it, out of the air. None, and nothing is done, if its first
        consumer is another, or it is not one run."""
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
        """One long lease at the top would keep the ends of all that were answered since."""
        raise NotImplementedError


if TYPE_CHECKING or air is None:
    Air = PlainAir
else:
    air.set_up(Lease, MessageRange, _FETCHED, heapq.heappush)
    Air = air.Air
