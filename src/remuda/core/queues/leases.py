"""The consumers of one queue, the deliveries they hold, and the pull requests that wait."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from remuda.core.queues.credit import Consumer, Credit, room
from remuda.core.queues.queue_entries import Lease as Lease
from remuda.core.queues.queue_entries import Waiter as Waiter
from remuda.core.queues.ranges import RangeMap
from remuda.core.queues.ready import NEVER

STALE: Final = 1000
"""How many deadlines of deliveries that are over a heap may hold, beyond twice the number of open ones."""
_REMEMBERED: Final = 1000


class Leases:
    """Consumers and waiting pulls of one queue, and the deliveries they hold until an answer or a timeout."""

    waits: bool
    """Whether the next delivery to a consumer waits for the answer to the last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.flights = RangeMap()
        self.leases: dict[int, Lease] = {}
        self.settled_ahead: dict[int, Lease] = {}
        """Deliveries sent ahead to several consumers that are settled, but that some of these have yet to take."""
        self.freed: list[Credit] = []
        """Shared credit that was given back here, for which consumers of other queues may be waiting."""
        self.unanswered = 0
        """Deliveries that no consumer has answered yet."""
        self.consumers: dict[str, Consumer] = {}
        self.waiters: dict[int, Waiter] = {}
        """Pull requests that wait, by tag, the oldest first."""
        self.stopped = deque[Waiter](maxlen=_REMEMBERED)
        """Those that waited until lately, for when an error undoes what they were given."""
        self.had_consumers = False
        self.serving = 0
        self._ready_consumers: list[tuple[int, int, int, str]] = []
        self._lease_ends: list[tuple[int, int]] = []
        """Deadline and token of each lease, and of some that are over, as a heap."""
        self._waiter_ends: list[tuple[int, int]] = []

    # Consumers

    def next_ready(self) -> Consumer | None:
        """Of the consumers that can take a message, one of the highest priority: the one served longest ago, then the
        one that came first."""
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
                lease.awaited -= {name}
                if not lease.awaited:
                    del self.settled_ahead[token]
        return consumer

    def offer(self, consumer: Consumer) -> None:
        """Note a consumer as ready if it can take a message."""
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

    # When pull requests and deliveries end

    def next_end(self) -> int:
        """When the next of them ends, if nothing else happens."""
        ends = self._lease_ends
        while ends and ends[0][1] not in self.leases and ends[0][1] not in self.settled_ahead:
            heapq.heappop(ends)
        soonest = ends[0][0] if ends else NEVER
        pulls = self._waiter_ends
        while pulls and pulls[0][1] not in self.waiters:
            heapq.heappop(pulls)
        return pulls[0][0] if pulls and pulls[0][0] < soonest else soonest

    def ended_waiters(self, now: int) -> Iterator[int]:
        """Stop pull requests whose time is up, and yield their tags."""
        while self._waiter_ends and self._waiter_ends[0][0] <= now:
            tag = heapq.heappop(self._waiter_ends)[1]
            if self.stop_waiting(tag):
                yield tag

    def stop_waiting(self, tag: int) -> bool:
        """Whether this pull request waited until now."""
        waiter = self.waiters.pop(tag, None)
        if waiter is not None:
            self.stopped.append(waiter)
        return waiter is not None

    def wait(self, waiter: Waiter) -> None:
        self.waiters[waiter.tag] = waiter
        heapq.heappush(self._waiter_ends, (waiter.until, waiter.tag))
        if len(self._waiter_ends) > 2 * len(self.waiters) + STALE:
            self._waiter_ends = [(one.until, one.tag) for one in self.waiters.values()]
            heapq.heapify(self._waiter_ends)

    def overdue_leases(self, now: int) -> Iterator[Lease]:
        while self._lease_ends and self._lease_ends[0][0] <= now:
            token = heapq.heappop(self._lease_ends)[1]
            lease = self.leases.get(token)
            if lease is None and (over := self.settled_ahead.pop(token, None)) is not None:
                self._arrived(over, over.awaited)
            # A lease that was renewed is in the heap once more, with its later deadline.
            if lease is not None and lease.deadline <= now:
                yield lease

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
            if lease.ahead:
                consumer.under_way += lease.sent
            else:
                consumer.unanswered += lease.open
                consumer.credit.used += lease.open

    def take_over(self, lease: Lease) -> None:
        """As `grant`, for a delivery that some consumers may have taken or answered already."""
        self.leases[lease.token] = lease
        self._note_end(lease)
        if lease.pulled:
            return
        self.unanswered += not lease.answered
        silent = () if lease.ahead else lease.silent
        for name in lease.consumers:
            consumer = self.consumers.get(name)
            if consumer is None:
                continue
            if name in lease.awaited:
                consumer.under_way += lease.sent
            if name in silent:
                consumer.unanswered += lease.open
                consumer.credit.used += lease.open

    def extend(self, lease: Lease, deadline: int) -> None:
        lease.deadline = deadline
        self._note_end(lease)

    def _note_end(self, lease: Lease) -> None:
        heapq.heappush(self._lease_ends, (lease.deadline, lease.token))
        if len(self._lease_ends) > 2 * len(self.leases) + STALE:
            self._drop_stale_ends()

    def _drop_stale_ends(self) -> None:
        held = {**self.settled_ahead, **self.leases}
        self._lease_ends = [(one.deadline, token) for token, one in held.items()]
        heapq.heapify(self._lease_ends)

    def handed_over(self, lease: Lease, name: str) -> None:
        """A consumer has taken a delivery."""
        lease.taken |= {name}
        if name in lease.awaited:
            self._arrived(lease, [name])
            lease.awaited -= {name}
            if not lease.awaited:
                self.settled_ahead.pop(lease.token, None)

    def _arrived(self, lease: Lease, names: Iterable[str]) -> None:
        """A delivery is no longer under way to these consumers."""
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
        """Give these consumers back their credit for `count` messages of a delivery."""
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
        """End a delivery. If it failed (not `over`) and its messages go out again, consumers that have yet to take it
        will not get it."""
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
                lease.awaited = frozenset()

    def keep(self, name: str) -> None:
        """A consumer leaves and keeps its deliveries: from now on they count as pulled."""
        for lease in self.leases.values():
            if name in lease.consumers and not lease.pulled:
                if not lease.answered:
                    self.unanswered -= 1
                lease.pulled = True
