"""What operators do to queues (reprocess, clear, move, forget), and what a restart or a damaged log does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from remuda.core import delivering
from remuda.core.queue import Queue
from remuda.core.ranges import MessageRange
from remuda.core.registry import Registry, whereabouts
from remuda.model.commands import Clear, EndUnreadable, Forget, Move, Reprocess
from remuda.model.filters import MessageFilter
from remuda.model.options import Persistence
from remuda.model.records import FORGOTTEN, MOVED, Event, QueueChange
from remuda.model.results import ParkedMessage
from remuda.model.state import PARKED, State, check_move

Begun = Callable[[int, int, int], list[tuple[int, int]] | None]
"""Called with messages that were in flight when the process died: the position of the event that fetched them, their
first offset and count. Returns the runs that a consumer had begun; None if that is unknown."""


class Operating:
    """Carries out the commands of operators."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._recorder = registry.recorder

    def reprocess(self, command: Reprocess) -> int:
        queue = self._registry.queue(command.queue)
        for state in command.filter.states:
            check_move(state, State.QUEUED)
        chosen = list(_chosen(queue, command.filter))
        if queue.id_of:
            chosen = list(_without_taken(queue, chosen))
        sent, limit = 0, queue.options.message_limit
        for piece in chosen:
            waits = piece.state is State.RETRY
            count = piece.count if waits or not limit else min(piece.count, limit - queue.size)
            if count <= 0:
                continue
            again = Event(queue.name, State.QUEUED, piece.first, count, reason="reprocessed", who=command.who)
            self._recorder.event(queue, piece.state, again)
            self._registry.learn_facts(queue, piece.first, count)
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
        """Move waiting messages, and parked ones if the filter names their states, as far as the other queue has room.
        The rest stays as it is."""
        registry = self._registry
        queue = registry.queue(command.queue)
        if command.to == queue.name:
            return 0
        if command.to not in registry.queues:
            registry.check_creation(command.to)
        moved = 0
        if State.QUEUED in command.filter.states:
            moved += registry.move_waiting(queue, command.to, who=command.who, offsets=command.filter.offsets)
        for piece in [piece for piece in _chosen(queue, command.filter) if piece.state in PARKED]:
            for first, count, taken in registry.taken_by(command.to, piece.first, piece.count):
                if not taken:
                    continue
                again = Event(queue.name, State.QUEUED, first, count, reason="moved", who=command.who)
                self._recorder.event(queue, piece.state, again)
                registry.end(
                    queue, State.QUEUED, first, count, f"{MOVED}{command.to}", priority=piece.priority, to=command.to,
                    who=command.who,
                )  # fmt: skip
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
        pieces = sorted(
            _chosen(self._registry.queue(name), chosen), key=lambda piece: (piece.time, piece.first), reverse=True
        )
        newest = ((piece, offset) for piece in pieces for offset in reversed(range(piece.first, piece.end)))
        return [
            ParkedMessage(offset, piece.state, piece.reason or "", piece.time)
            for piece, offset in islice(newest, limit)
        ]

    def resume(self, begun: Begun, *, keep: bool = False) -> None:
        """After a restart: put back all deliveries, and end the messages that memory queues have lost (Q17)."""
        for queue in self._registry.queues.values():
            queue.had_consumers = False  # they are gone with their process, and may come back
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
    places = [queue.parked, queue.delayed] if State.RETRY in wanted.states else [queue.parked]
    for ranges in places:
        found: Iterable[MessageRange] = list(ranges)
        if wanted.offsets is not None:
            found = [piece for first, count in wanted.offsets for piece in ranges.find(first, count)]
        for piece in found:
            if (
                piece.state in wanted.states
                and wanted.since <= piece.time
                and (wanted.until is None or piece.time < wanted.until)
                and (wanted.reason is None or wanted.reason in (piece.reason or ""))
            ):
                yield piece


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
