"""Limits that several queues share by name (F2): messages in flight together, or a rate."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from remuda.core.flow.buckets import MOST, Bucket, carried, put_right
from remuda.core.flow.rules import pairs
from remuda.core.queues.ready import NEVER

if TYPE_CHECKING:
    from remuda.core.queues.queue import Queue


class SharedLimit:
    """One limit. Where its queues say different numbers, the least holds."""

    __slots__ = ("_bucket", "_due", "_members", "_most", "_started", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: dict[str, tuple[Queue, str]] = {}
        self._most = MOST
        self._bucket: Bucket | None = None
        self._due = 0.0
        self._started = 0

    @property
    def queues(self) -> list[Queue]:
        return [queue for queue, _ in self._members.values()]

    @property
    def due(self) -> float:
        """When the next message is due by its rate."""
        return self._due

    def join(self, queue: Queue, value: str, now: int) -> None:
        self._members[queue.name] = queue, value
        self._note(now)

    def leave(self, name: str, now: int) -> list[str]:
        """A queue leaves. Returns those that stay, and have its room from now on; none if it had no part."""
        if self._members.pop(name, None) is None:
            return []
        self._note(now)
        return list(self._members)

    def resume(self, due: float, time: int) -> None:
        """After a restart: no second burst. `time` is when the snapshot was made that tells."""
        self._due, self._started = max(self._due, due), max(self._started, time)

    def turn_back(self, now: int) -> None:
        """After a start with a clock that is behind the last one, which was ahead."""
        if now < self._started:
            self._due, self._started = put_right(self._due, now, self._started - now), now

    def room(self, now: int) -> int:
        room = self._most
        if room < MOST:
            for queue, _ in self._members.values():
                room -= queue.flights.size
        if self._bucket is not None:
            room = min(room, self._bucket.room(self._due, now))
        return room

    def opens(self, now: int) -> int:
        """When more may go, if nothing but time goes by."""
        if self._most < MOST and sum(queue.flights.size for queue, _ in self._members.values()) >= self._most:
            return NEVER
        return 0 if self._bucket is None else self._bucket.opens(self._due, now)

    def spend(self, count: int, time: int) -> None:
        self.turn_back(time)
        self._started = time
        if self._bucket is not None:
            self._due = self._bucket.spend(self._due, time, count)

    def _note(self, now: int) -> None:
        values = [value for _, value in self._members.values()]
        self._most = min((int(value) for value in values if value.isdecimal()), default=MOST)
        buckets = [Bucket(value) for value in values if not value.isdecimal()]
        before, self._bucket = self._bucket, max(buckets, key=lambda one: one.interval, default=None)
        if before is not None:
            self._due = carried(before, self._bucket, self._due, now)


class SharedLimits:
    """All shared limits of a broker."""

    __slots__ = ("_limits", "_turn")

    def __init__(self) -> None:
        self._limits: dict[str, SharedLimit] = {}
        self._turn = 0

    def join(self, queue: Queue, now: int) -> list[str]:
        """A queue's options changed: it shares what they name, and nothing else. Returns the queues that have more room
        by it."""
        named = pairs(queue.options.limits)
        queue.shares = bool(named)
        freed = self.leave(queue.name, now, {name for name, _ in named})
        if queue.flow is not None:
            queue.flow.shared = []
            for name, value in named:
                limit = self._limits.get(name)
                if limit is None:
                    limit = self._limits[name] = SharedLimit(name)
                limit.join(queue, value, now)
                queue.flow.shared.append(limit)
        return freed

    def leave(self, name: str, now: int, stays: Collection[str] = ()) -> list[str]:
        """A queue leaves all limits but these. One that it stays in keeps what its rate has come to. Returns the queues
        that have more room by it."""
        freed = []
        for limit in list(self._limits.values()):
            if limit.name not in stays:
                freed += limit.leave(name, now)
                if not limit.queues:
                    del self._limits[limit.name]
        return freed

    def mates(self, queue: Queue) -> list[Queue]:
        """The queue and all that share a limit with it, the one served longest ago first."""
        flow = queue.flow
        found = {queue.name: queue}
        if flow is not None:
            found.update((one.name, one) for limit in flow.shared for one in limit.queues)
        return sorted(found.values(), key=lambda one: 0 if one.flow is None else one.flow.served)

    def served(self, queue: Queue) -> None:
        """Among queues that share a limit, the one served longest ago goes first."""
        if queue.flow is not None:
            self._turn += 1
            queue.flow.served = self._turn

    def dues(self) -> dict[str, float]:
        return {limit.name: limit.due for limit in self._limits.values() if limit.due}

    def resume(self, dues: dict[str, float], time: int) -> None:
        for name, due in dues.items():
            if name in self._limits:
                self._limits[name].resume(due, time)

    def turn_back(self, now: int) -> None:
        for limit in self._limits.values():
            limit.turn_back(now)
