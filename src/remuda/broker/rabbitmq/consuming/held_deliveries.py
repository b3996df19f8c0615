"""Deliveries that consumers hold: each guarded by a lease, until it is answered or its time is up."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterable
from typing import Final

from remuda.amqp.client.channel import Channel
from remuda.broker.rabbitmq.consuming.delivery_groups import Group, count_of, numbers_of
from remuda.broker.rabbitmq.consuming.fetcher import Fetcher

_LEASES: Final = itertools.count(1)


class HeldDelivery:
    """What one consumer holds of one delivery."""

    __slots__ = ("channel", "consumer", "deadline", "fetched", "fetcher", "groups", "lease", "queue")

    def __init__(
        self, queue: str, consumer: str, channel: Channel, fetcher: Fetcher | None, groups: list[Group],
        fetched: int, deadline: int,
    ) -> None:  # fmt: skip
        self.lease = next(_LEASES)
        self.queue = queue
        self.consumer = consumer
        self.channel = channel
        self.fetcher = fetcher
        self.fetched = fetched
        self.deadline = deadline
        self.groups = groups

    def take(self, runs: Iterable[tuple[int, int]] | None) -> list[Group]:
        """Take all out, or those with these numbers."""
        if runs is None:
            groups, self.groups = self.groups, []
            return groups
        wanted = {number for first, count in runs for number in range(first, first + count)}
        taken, left = [], []
        for group in self.groups:
            places = [at for at, number in enumerate(group.numbers) if number in wanted]
            if not places:
                left.append(group)
            elif len(places) == len(group):
                taken.append(group)
            else:
                chosen = set(places)
                taken.append(group.choose(places))
                left.append(group.choose([at for at in range(len(group)) if at not in chosen]))
        self.groups = left
        return taken


class HeldDeliveries:
    """All deliveries of this process that wait for an answer."""

    def __init__(self) -> None:
        self.late = 0
        """Answers that came too late or for the second time."""
        self._by_lease: dict[int, HeldDelivery] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._guard = threading.Lock()

    def add(self, held: HeldDelivery) -> None:
        with self._guard:
            self._by_lease[held.lease] = held
            heapq.heappush(self._deadlines, (held.deadline, held.lease))

    def take(self, lease: int, runs: Iterable[tuple[int, int]] | None) -> tuple[HeldDelivery, list[Group]] | None:
        """Take out what an answer is for, so that nothing else can answer it; None if it was answered already."""
        with self._guard:
            held = self._by_lease.get(lease)
            if held is None:
                self.late += 1
                return None
            groups = held.take(runs)
            if not held.groups:
                del self._by_lease[lease]
            if not groups:
                self.late += 1
                return None
        if held.fetcher is not None:
            held.fetcher.answered(count_of(groups))
        # Deliveries of a lost connection belong to RabbitMQ again, and are redelivered.
        epoch = held.channel.epoch
        current = [kept for group in groups if (kept := group.of_epoch(epoch)) is not None]
        return (held, current) if current else None

    def put_back(self, held: HeldDelivery, groups: list[Group]) -> None:
        """An answer was refused: the consumer holds this again."""
        with self._guard:
            held.groups += groups
            self._by_lease[held.lease] = held
            heapq.heappush(self._deadlines, (held.deadline, held.lease))
        if held.fetcher is not None:
            held.fetcher.answered(-count_of(groups))

    def renew(self, lease: int, deadline: int) -> bool:
        with self._guard:
            held = self._by_lease.get(lease)
            if held is None:
                return False
            held.deadline = deadline
            heapq.heappush(self._deadlines, (deadline, lease))
            return True

    def overdue(self, now: int) -> list[int]:
        """Leases whose time is up."""
        due = []
        with self._guard:
            while self._deadlines and self._deadlines[0][0] <= now:
                _, lease = heapq.heappop(self._deadlines)
                held = self._by_lease.get(lease)
                if held is not None and held.deadline <= now:
                    due.append(lease)
        return due

    @property
    def next_deadline(self) -> int | None:
        with self._guard:
            while self._deadlines and self._deadlines[0][1] not in self._by_lease:
                heapq.heappop(self._deadlines)
            return self._deadlines[0][0] if self._deadlines else None

    def of(self, queue: str) -> int:
        """How many messages of a queue are held."""
        with self._guard:
            return sum(count_of(held.groups) for held in self._by_lease.values() if held.queue == queue)

    def held_through(self, fetcher: Fetcher) -> list[int]:
        with self._guard:
            return [lease for lease, held in self._by_lease.items() if held.fetcher is fetcher]

    def drop(self, queue: str) -> list[int]:
        """Drop what is held of a queue that was removed. Returns the numbers of the messages."""
        with self._guard:
            gone = [held for held in self._by_lease.values() if held.queue == queue]
            for held in gone:
                del self._by_lease[held.lease]
        return [number for held in gone for number in numbers_of(held.groups)]
