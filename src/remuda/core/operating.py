"""What operators do to queues (reprocess, clear, move, forget), and what a restart or a damaged log does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice, takewhile
from typing import Final

import msgspec

from remuda.core import delivering
from remuda.core.queues.queue import Queue
from remuda.core.queues.ranges import MessageRange
from remuda.core.registry import Registry, whereabouts
from remuda.model.life import PARKED, check_move
from remuda.model.operations.commands import Clear, EndUnreadable, Forget, Move, Reprocess, RequeueFront
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.results import ParkedMessage
from remuda.model.queues.options import Persistence
from remuda.model.records import FORGOTTEN, Event, QueueChange
from remuda.model.state import State

_FEW: Final = 8
"""Where less than one in so many is asked for, they are looked up; else it is quicker to look at all."""

Begun = Callable[[int, int, int], list[tuple[int, int]] | None]
"""Called with messages that were in flight when the process died: the position of the event that fetched them, their
first offset and count. Returns the runs that a consumer had begun; None if that is unknown."""


class Operating:
    """Carries out the commands of operators."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._recorder = registry.recorder

    def reprocess(self, command: Reprocess) -> int:
        return self._send_back(command, ahead=False)

    def requeue_front(self, command: RequeueFront) -> int:
        return self._send_back(command, ahead=True)

    def _send_back(self, command: Reprocess | RequeueFront, *, ahead: bool) -> int:
        queue = self._registry.queue(command.queue)
        for state in command.filter.taken:
            check_move(state, State.QUEUED)
        chosen = list(_chosen(queue, command.filter))
        if queue.id_of:
            chosen = list(_without_taken(queue, chosen))
        sent, limit = 0, queue.options.message_limit
        for piece in chosen:
            waits = piece.state is State.RETRY
            count = piece.count if waits or not limit else min(piece.count, limit - queue.size)
            if count > 0 and not waits:
                count = self._registry.fitting(queue, piece.first, count)
            if count <= 0:
                continue
            again = Event(
                queue.name, State.QUEUED, piece.first, count, reason="reprocessed", ahead=ahead, who=command.who
            )
            self._recorder.event(queue, piece.state, again)
            self._registry.learn_sizes(queue, piece.first, count)
            sent += count
        self._registry.after(queue)
        return sent

    def forget(self, command: Forget) -> int:
        queue = self._registry.queue(command.queue)
        chosen = [piece for piece in _chosen(queue, command.filter) if piece.state in PARKED]
        for piece in chosen:
            self._recorder.change(
                QueueChange(
                    FORGOTTEN, queue.name, self._recorder.now, first=piece.first, count=piece.count, who=command.who
                )
            )
            queue.forget(piece.first, piece.count)
        self._registry.after(queue)
        return sum(piece.count for piece in chosen)

    def clear(self, command: Clear) -> int:
        queue = self._registry.queue(command.queue)
        count = self._registry.clear(
            queue, command.lanes, who=command.who, offsets=command.offsets, reason=command.reason
        )
        self._registry.after(queue)
        return count

    def move(self, command: Move) -> int:
        """Move messages that wait, and parked ones if the filter names their states, as far as the other queue has
        room. The rest stays as it is."""
        registry = self._registry
        queue = registry.queue(command.queue)
        if command.to == queue.name:
            return 0
        if command.to not in registry.queues:
            registry.check_creation(command.to)
        parked = [piece for piece in _chosen(queue, command.filter) if piece.state in PARKED]
        waiting = registry.waiting(queue, offsets=command.filter.offsets)
        moved = 0
        for piece in _wanted(waiting, command.filter):
            for tried in _by_attempts(queue, piece):
                moved += registry.move(queue, tried, command.to, command.who)
        for piece in parked:
            for first, count, taken in registry.taken_by(command.to, piece.first, piece.count):
                if not taken:
                    continue
                again = Event(queue.name, State.QUEUED, first, count, reason=piece.reason, who=command.who)
                self._recorder.event(queue, piece.state, again)
                registry.end(
                    queue, State.QUEUED, first, count, None, priority=piece.priority, to=command.to, who=command.who
                )
                moved += count
        registry.after(queue)
        return moved

    def end_unreadable(self, command: EndUnreadable) -> None:
        queue = self._registry.queue(command.queue)
        held = {piece.lease for first, count in command.runs for piece in queue.flights.find(first, count)}
        for first, count in command.runs:
            for source, start, size, priority in whereabouts(queue, first, count):
                if source is not State.SUCCESS:
                    self._registry.end(queue, source, start, size, "unreadable in the log", priority=priority)
        delivering.recount(queue, held)
        self._registry.after(queue)

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        """The newest `limit` of the messages chosen, newest first."""
        queue = self._registry.queue(name)
        pieces: Iterable[MessageRange]
        if (_FEW * limit < queue.parked.size or chosen.since) and _is_plain(chosen):
            pieces = _wanted(takewhile(lambda piece: piece.time >= chosen.since, queue.parked.newest()), chosen)
        else:
            pieces = sorted(_chosen(queue, chosen), key=lambda piece: (piece.time, piece.first), reverse=True)
        newest = ((piece, offset) for piece in pieces for offset in reversed(range(piece.first, piece.end)))
        return [
            ParkedMessage(offset, piece.state, piece.reason or "", piece.time)
            for piece, offset in islice(newest, limit)
        ]

    def resume(self, begun: Begun, *, keep: bool = False) -> None:
        """After a restart: put back all deliveries, and end the messages that memory queues have lost (Q17)."""
        now = self._recorder.now
        self._registry.limits.turn_back(now)
        for queue in self._registry.queues.values():
            queue.had_consumers = False  # they are gone with their process, and may come back
            if queue.flow is not None:
                queue.flow.turn_back(now)
        for queue in list(self._registry.queues.values()):
            _resume(self._registry, queue)
            if not keep:
                _release_unclaimed(self._registry, queue, begun)
            self._registry.after(queue)

    def release_unclaimed(self, begun: Begun) -> None:
        for queue in list(self._registry.queues.values()):
            _release_unclaimed(self._registry, queue, begun)
            self._registry.after(queue)


def _chosen(queue: Queue, wanted: MessageFilter) -> Iterator[MessageRange]:
    """Messages that failed, parked or waiting for a retry, as the filter wants them."""
    places = [queue.parked, queue.delayed] if State.RETRY in wanted.taken else [queue.parked]
    for ranges in places:
        found: Iterable[MessageRange]
        if wanted.offsets is None:
            found = list(ranges)
        else:
            found = [piece for first, count in wanted.offsets for piece in ranges.find(first, count)]
        yield from _wanted(found, wanted)


def _by_attempts(queue: Queue, piece: MessageRange) -> Iterator[MessageRange]:
    """Waiting messages with the attempts that counted so far, which a queue keeps apart for those in its lanes."""
    if not queue.attempts or piece.redelivered:
        yield piece
        return
    for tried, offsets in groupby(range(piece.first, piece.end), key=lambda offset: queue.attempts.get(offset, 0)):
        first, *more = offsets
        part = piece.part(first, first + len(more) + 1)
        yield msgspec.structs.replace(part, attempt=tried)


def _wanted(pieces: Iterable[MessageRange], wanted: MessageFilter) -> Iterator[MessageRange]:
    for piece in pieces:
        if wanted.fits(piece.state, piece.reason, piece.time):
            yield piece


def _is_plain(wanted: MessageFilter) -> bool:
    """Whether most of the newest parked messages are likely to be wanted, and no others."""
    return wanted.offsets is None and wanted.reason is None and wanted.until is None and State.RETRY not in wanted.taken


def _without_taken(queue: Queue, pieces: list[MessageRange]) -> Iterator[MessageRange]:
    """In a queue with unique ids: the messages whose id no live message has, and none of these before it."""
    seen: set[str] = set()
    for piece in pieces:
        if piece.state not in PARKED:
            yield piece
            continue
        for offset in range(piece.first, piece.end):
            identity = queue.id_of.get(offset)
            if identity is None or (identity not in queue.offset_of and identity not in seen):
                seen.add(identity or "")
                yield piece.part(offset, offset + 1)


def _resume(registry: Registry, queue: Queue) -> None:
    if queue.options.persistence is Persistence.MEMORY:
        for source, first, count, priority in whereabouts(queue):
            if source is not State.SUCCESS:
                registry.end(queue, source, first, count, "lost at restart: a memory queue", priority=priority)
    for piece in list(queue.flights):
        if piece.state is State.SUCCESS:
            queue.let_go(piece)


def _release_unclaimed(registry: Registry, queue: Queue, begun: Begun) -> None:
    for piece in list(queue.flights):
        if piece.state is State.FETCHED and piece.lease not in queue.leases:
            delivering.put_back_begun(registry, queue, piece, begun(piece.lease, piece.first, piece.count))
