"""What people and circumstances do to a queue: reprocess, clear, forget, end, resume after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from remuda.core import admission
from remuda.core.ledger import Ledger
from remuda.core.pieces import Piece
from remuda.core.queue import Queue
from remuda.core.settling import put_back_lost
from remuda.model.errors import InvalidOption
from remuda.model.options import Persistence
from remuda.model.records import FORGOTTEN, Event, QueueChange
from remuda.model.state import PARKED, State, check_move


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Parked messages by how, why and when they ended, or by offset."""

    states: frozenset[State] = PARKED
    reason: str | None = None
    """Part of the reason's text."""
    since: int = 0
    until: int | None = None
    offsets: tuple[tuple[int, int], ...] | None = None

    def of(self, queue: Queue) -> list[Piece]:
        for state in self.states:
            check_move(state, State.QUEUED)
        parked: Iterable[Piece] = queue.parked
        if self.offsets is not None:
            parked = [piece for first, count in self.offsets for piece in queue.parked.find(first, count)]
        return [
            piece
            for piece in parked
            if piece.state in self.states
            and self.since <= piece.time
            and (self.until is None or piece.time < self.until)
            and (self.reason is None or self.reason in (piece.reason or ""))
        ]


class Parked(msgspec.Struct, frozen=True):
    """One message that ended without success."""

    offset: int
    state: State
    reason: str
    time: int


def parked(queue: Queue, selection: Selection, limit: int) -> list[Parked]:
    """The newest `limit` of the messages selected, newest first."""
    if limit < 1:
        raise InvalidOption(f"a list has room for at least 1 message, not {limit}")
    pieces = sorted(selection.of(queue), key=lambda piece: (piece.time, piece.first), reverse=True)
    newest = ((piece, offset) for piece in pieces for offset in reversed(range(piece.first, piece.end)))
    return [Parked(offset, piece.state, piece.reason or "", piece.time) for piece, offset in islice(newest, limit)]


def reprocess(ledger: Ledger, queue: Queue, selection: Selection, who: str | None) -> int:
    chosen = selection.of(queue)
    if queue.id_of:
        chosen = list(_without_taken(queue, chosen))
    sent, limit = 0, queue.options.message_limit
    for piece in chosen:
        count = min(piece.count, limit - queue.size) if limit else piece.count
        if count <= 0:
            break
        again = Event(queue.name, State.QUEUED, piece.first, count, reason="reprocessed", who=who)
        ledger.event(queue, piece.state, again)
        sent += count
    return sent


def _without_taken(queue: Queue, pieces: list[Piece]) -> Iterator[Piece]:
    """Of a queue with unique ids, the messages whose id no live message has, nor another of these before it."""
    seen: set[str] = set()
    for piece in pieces:
        for offset in range(piece.first, piece.end):
            identity = queue.id_of.get(offset)
            if identity is None or (identity not in queue.offset_of and identity not in seen):
                seen.add(identity or "")
                yield piece.part(offset, offset + 1)


def forget(ledger: Ledger, queue: Queue, selection: Selection, who: str | None) -> int:
    chosen = selection.of(queue)
    for piece in chosen:
        change = QueueChange(FORGOTTEN, queue.name, ledger.now, first=piece.first, count=piece.count, who=who)
        ledger.change(change)
        queue.forget(piece.first, piece.count)
    return sum(piece.count for piece in chosen)


def clear(ledger: Ledger, queue: Queue, lanes: str, who: str | None) -> int:
    if lanes not in ("all", "priority", "regular"):
        raise InvalidOption(f"clear takes all, priority or regular, not {lanes!r}")
    queue.release_due(ledger.now)
    chosen = {"all": queue.lanes(), "priority": (queue.high,), "regular": (queue.returned, queue.normal)}[lanes]
    count = end(ledger, queue, [run[:2] for lane in chosen for run in lane.runs()], "cleared", who)
    if lanes == "all":
        count += end(ledger, queue, [(piece.first, piece.count) for piece in queue.delayed], "cleared", who)
    return count


def end(ledger: Ledger, queue: Queue, runs: Iterable[tuple[int, int]], reason: str, who: str | None = None) -> int:
    """These messages end, wherever in the queue they are."""
    ended = 0
    for first, count in runs:
        for source, start, size in _whereabouts(queue, first, count):
            ledger.event(queue, source, Event(queue.name, State.DEAD, start, size, reason=reason, who=who))
            ended += size
    return ended


def end_everything(ledger: Ledger, queue: Queue, reason: str, who: str | None) -> None:
    end(ledger, queue, list(_live(queue)), reason, who)
    queue.leases.clear()


Begun = Callable[[int, int, int], list[tuple[int, int]] | None]
"""Of messages that were in flight when the process died, by the event that fetched them, their first offset and their
count: the runs that were begun. None if nobody knows."""


def resume(ledger: Ledger, queue: Queue, begun: Begun) -> None:
    """Nobody holds a delivery after a restart, and a memory queue has lost its messages (Q17)."""
    if queue.options.persistence is Persistence.MEMORY:
        end(ledger, queue, list(_live(queue)), "lost at restart: a memory queue")
    for piece in list(queue.flights):
        if piece.state is State.SUCCESS:
            queue.let_go(piece)
            continue
        known = begun(piece.lease, piece.first, piece.count)
        at = piece.first
        for first, count in [(at, piece.count)] if known is None else known:
            if at < first:
                put_back_lost(ledger, queue, piece.part(at, first), attempted=False)
            at = first + count
            put_back_lost(ledger, queue, piece.part(first, at))
        if at < piece.end:
            put_back_lost(ledger, queue, piece.part(at, piece.end), attempted=False)


def enter(ledger: Ledger, queue: Queue, event: Event) -> None:
    """Messages come from another queue. Those that are here already, having come by two ways, stay as they are.

    What this queue would refuse does not come; it is kept where it ended.
    """
    event = msgspec.structs.replace(event, count=min(event.count, admission.room(queue)))
    if not event.count:
        return
    live = _whereabouts(queue, event.first, event.count)
    parked = [(piece.state, piece.first, piece.count) for piece in queue.parked.find(event.first, event.count)]
    at, end = event.first, event.first + event.count
    for state, first, count in sorted([*live, *parked], key=lambda found: found[1]):
        if first > at:
            ledger.event(queue, State.LOGGED, msgspec.structs.replace(event, first=at, count=first - at))
        if state in PARKED:
            ledger.event(queue, state, msgspec.structs.replace(event, first=first, count=count))
        at = first + count
    if at < end:
        ledger.event(queue, State.LOGGED, msgspec.structs.replace(event, first=at, count=end - at))


def _live(queue: Queue) -> Iterable[tuple[int, int]]:
    for lane in queue.lanes():
        for first, count, _ in lane.runs():
            yield first, count
    for pieces in (queue.flights, queue.delayed):
        for piece in pieces:
            if piece.state is not State.SUCCESS:
                yield piece.first, piece.count


def _whereabouts(queue: Queue, first: int, count: int) -> list[tuple[State, int, int]]:
    """Which of these messages are live here, with the state each is in."""
    found = [
        (piece.state, piece.first, piece.count)
        for pieces in (queue.flights, queue.delayed)
        for piece in pieces.find(first, count)
    ]
    for lane in queue.lanes():
        for start, size, _ in lane.overlap(first, count):
            found.append((State.QUEUED, start, size))
    return found
