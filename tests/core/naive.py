"""A queue as a child would build it: plain lists of single messages, moved by the core's records one by one.

It is slow and obvious. Where it and the core's columns differ, the columns are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remuda.core.core import Core
from remuda.core.queues.queue import Queue
from remuda.core.queues.ranges import RangeMap
from remuda.core.queues.ready import NEVER
from remuda.model.life import LIVE, PARKED, check_move
from remuda.model.messages import cell
from remuda.model.queues.options import PER_TOPIC, QueueOptions
from remuda.model.records import CONFIGURED, CREATED, FORGOTTEN, REMOVED, Appended, Event, Events, QueueChange, Record
from remuda.model.state import State

Level = tuple[int, bool]
"""A priority, and whether its messages were put back to the front."""


@dataclass
class Copy:
    """One message in one queue."""

    offset: int
    id: str
    priority: int
    deadline: int
    state: State = State.QUEUED
    due: int | None = None
    ahead: bool = False
    attempts: int = 0
    fetched: int = 0
    confirmations: int = 0


@dataclass
class NaiveQueue:
    options: QueueOptions
    levels: dict[Level, list[Copy]] = field(default_factory=dict)
    delayed: list[Copy] = field(default_factory=list)
    copies: dict[int, Copy] = field(default_factory=dict)
    newest_first: bool = False

    def in_order(self) -> list[tuple[Level, list[Copy]]]:
        """The highest priority first, and in each what was put back to the front."""
        return sorted(
            ((level, copies) for level, copies in self.levels.items() if copies),
            key=lambda item: (-item[0][0], not item[0][1]),
        )

    @property
    def line(self) -> list[Copy]:
        return [copy for _, copies in self.in_order() for copy in copies]

    @property
    def live(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.state in LIVE]

    @property
    def size(self) -> int:
        """Q9: waiting, delayed and in flight."""
        return len(self.live)

    def in_state(self, *states: State) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.state in states]

    def admit(self, copy: Copy, now: int) -> None:
        self.copies[copy.offset] = copy
        self._join(copy, now)

    def let_time_pass(self, now: int) -> None:
        """Delayed messages that are due join the line, in the order in which they became due."""
        ready = [copy for copy in self.delayed if copy.state is State.QUEUED and (copy.due or 0) <= now]
        for copy in sorted(ready, key=lambda copy: (copy.due or 0, copy.offset)):
            self.delayed.remove(copy)
            copy.due = None
            self._join(copy, now)

    def play(self, event: Event, offset: int, now: int, deadline: int = NEVER) -> None:
        """`deadline` is the one that a message from another queue had there."""
        copy = self.copies.get(offset)
        if copy is None or (copy.state is State.SUCCESS and event.state is State.QUEUED):
            # It comes from another queue, perhaps after its copy here was confirmed too seldom and let go.
            copy = Copy(offset, "", event.priority, min(self.timeout(now), deadline), State.LOGGED)
            self.copies[offset] = copy
        again = copy.state is State.SUCCESS and event.state is State.SUCCESS and self.options.confirmations != 1
        if not again:
            check_move(copy.state, event.state)
        if event.state is State.FETCHED:
            self._fetch(copy, event, now)
        self._leave(copy)
        came_from, copy.state = copy.state, event.state
        if event.state is State.SUCCESS:
            copy.confirmations += 1
        if event.state is State.RETRY or (event.state is State.QUEUED and event.due is not None):
            copy.due, copy.ahead = event.due or now, event.ahead
            copy.attempts = max(event.attempt, 0)
            self.delayed.append(copy)
        elif event.state is State.QUEUED:
            if came_from in PARKED:
                copy.deadline, copy.confirmations = min(self.timeout(now), deadline), 0
            copy.attempts, copy.ahead, copy.due = max(event.attempt, 0), event.ahead, None
            self._join(copy, now)
        elif event.to is not None or event.state in (State.COMPLETED, State.KICKED):
            del self.copies[offset]

    def _fetch(self, copy: Copy, event: Event, now: int) -> None:
        assert copy.deadline > now, "Q5: delivered after its deadline"
        assert event.attempt == copy.attempts + 1, "attempts are counted one by one"
        if self.newest_first:
            assert copy is self.in_order()[0][1][-1], "Q16: the newest was asked for"
        else:
            assert copy is self.line[0], "Q15: first in, first out"
        copy.attempts, copy.fetched = event.attempt, now

    def _join(self, copy: Copy, now: int) -> None:
        if copy.due is not None and copy.due > now:
            self.delayed.append(copy)
        else:
            level = self.levels.setdefault((copy.priority, copy.ahead), [])
            level.append(copy)
            if copy.ahead:
                level.sort(key=lambda one: one.offset)

    def _leave(self, copy: Copy) -> None:
        for place in (*self.levels.values(), self.delayed):
            if copy in place:
                place.remove(copy)

    def timeout(self, now: int) -> int:
        return now + self.options.message_timeout if self.options.message_timeout else NEVER


class Naive:
    """All queues, from records."""

    def __init__(self) -> None:
        self.queues: dict[str, NaiveQueue] = {}
        self.left: dict[tuple[str, int], int] = {}
        """The deadlines of messages that left a queue for another (Q5)."""

    def play(self, record: Record) -> None:
        match record:
            case Appended():
                self._append(record)
            case Events():
                for event in record.rows:
                    self.queues[event.queue].let_time_pass(record.time)
                    queue = self.queues[event.queue]
                    for offset in self._offsets(event):
                        left = queue.copies.get(offset)
                        if event.to is not None and event.reason != "expired" and left is not None:
                            self.left[event.to, offset] = left.deadline
                        came = self.left.pop((event.queue, offset), NEVER) if event.state is State.QUEUED else NEVER
                        queue.play(event, offset, record.time, came)
            case QueueChange():
                self._change(record)
            case _:
                pass

    def let_time_pass(self, now: int) -> None:
        for queue in self.queues.values():
            queue.let_time_pass(now)

    def restart(self) -> None:
        """What was confirmed too seldom has nobody left to confirm it."""
        for queue in self.queues.values():
            for copy in queue.in_state(State.SUCCESS):
                del queue.copies[copy.offset]

    def _offsets(self, event: Event) -> list[int]:
        offsets = list(range(event.first, event.first + event.count))
        newest = event.state is State.FETCHED and self.queues[event.queue].newest_first
        return offsets[::-1] if newest else offsets

    def _append(self, record: Appended) -> None:
        for row, message in enumerate(record.messages):
            names: tuple[str, ...] = cell(record.queues, row)
            for name in names:
                queue = self.queues[name]
                queue.let_time_pass(record.created)
                own = message.expires if message.expires is not None else NEVER
                deadline = min(own, queue.timeout(record.created))
                due = message.due if message.due is not None and message.due > record.created else None
                copy = Copy(record.first + row, message.id, message.priority, deadline, due=due)
                queue.admit(copy, record.created)

    def _change(self, change: QueueChange) -> None:
        if change.action == CREATED and change.options is not None:
            self.queues[change.queue] = NaiveQueue(change.options)
        elif change.action == CONFIGURED and change.options is not None:
            self.queues[change.queue].options = change.options
        elif change.action == REMOVED:
            del self.queues[change.queue]
        elif change.action == FORGOTTEN:
            for offset in range(change.first, change.first + change.count):
                del self.queues[change.queue].copies[offset]


Levels = list[tuple[Level, list[tuple[int, int]]]]


def levels_of(queue: Queue) -> Levels:
    """Offset and deadline of each waiting message, level by level."""
    return [
        (
            (priority, front),
            [(offset, deadline) for first, count, deadline in level.runs() for offset in range(first, first + count)],
        )
        for priority, front, level in queue.ready.levels()
        if level.size
    ]


def naive_levels(queue: NaiveQueue) -> Levels:
    return [(level, [(copy.offset, copy.deadline) for copy in copies]) for level, copies in queue.in_order()]


def states_in(ranges: RangeMap) -> dict[int, State]:
    return {offset: piece.state for piece in ranges for offset in range(piece.first, piece.end)}


def state_of(core: Core) -> dict[str, object]:
    """All that a restart must bring back. Leases and consumers end with the process; so do unfinished confirmations."""
    return {name: _queue_state(queue) for name, queue in core.queues.items()}


def _queue_state(queue: Queue) -> dict[str, object]:
    def cut(ranges: RangeMap, *fields: str) -> dict[int, tuple[object, ...]]:
        return {
            offset: tuple(getattr(piece, name) for name in fields)
            for piece in ranges
            if piece.state is not State.SUCCESS
            for offset in range(piece.first, piece.end)
        }

    unfinished = {o for p in queue.flights if p.state is State.SUCCESS for o in range(p.first, p.end)}
    return {
        "options": queue.options,
        "status": queue.status,
        "levels": levels_of(queue),
        "flights": cut(queue.flights, "state", "deadline", "priority", "attempt", "time", "redelivered"),
        "delayed": cut(queue.delayed, "state", "deadline", "priority", "attempt", "due", "front", "redelivered"),
        "parked": cut(queue.parked, "state", "priority", "attempt", "reason", "time"),
        "attempts": queue.attempts,
        "ids": {offset: identity for offset, identity in queue.id_of.items() if offset not in unfinished},
        "topics": {
            offset: count
            for offset, count in queue.topic_counts.items()
            if offset not in unfinished and queue.options.confirmations == PER_TOPIC
        },
        "notes": dict(queue.notes.table),
        "counts": queue.counts,
        "had_messages": queue.had_messages,
    }
