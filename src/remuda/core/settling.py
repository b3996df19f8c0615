"""Deliveries come to an end: an answer, a late or missing one, a consumer that is gone (Q3, Q9, M8)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remuda.core.effects import Answer, NoticeKind
from remuda.core.ledger import Ledger
from remuda.core.pieces import Piece
from remuda.core.queue import Lease, Queue
from remuda.model.options import PutBack
from remuda.model.records import Event
from remuda.model.state import State


class Verdict(msgspec.Struct, frozen=True):
    """What shall become of delivered messages."""

    answer: Answer
    reason: str | None = None
    delay: int | None = None
    """Before the next attempt; None leaves it to the queue."""
    consumer: str | None = None
    who: str | None = None
    detail: str | None = None


def settle(
    ledger: Ledger, queue: Queue, token: int, verdict: Verdict, runs: Sequence[tuple[int, int]] | None
) -> list[Piece]:
    """Answer for some or all messages of a delivery. What comes back is what the answer settled.

    An answer that comes too late, or for the second time, changes nothing and is counted.
    """
    lease = queue.leases.get(token)
    if lease is None or verdict.consumer not in lease.consumers:
        ledger.late_answers += 1
        queue.late_answers += 1
        return []
    pieces = _held(queue, lease, lease.runs if runs is None else runs)
    if not pieces or verdict.consumer in lease.confirmed or verdict.consumer in lease.declined:
        ledger.late_answers += 1
        queue.late_answers += 1
        return []
    for piece in pieces:
        ledger.notice(
            NoticeKind.ACKNOWLEDGED, queue, first=piece.first, count=piece.count, consumer=verdict.consumer,
            detail=verdict.answer,
        )  # fmt: skip
    if lease.needed != 1:
        return _count_confirmation(ledger, queue, lease, pieces[0], verdict)
    for piece, decided in _reviewed(queue, pieces, verdict):
        conclude(ledger, queue, piece, decided)
    lease.open -= sum(piece.count for piece in pieces)
    if lease.open <= 0:
        queue.revoke(lease)
    return pieces


def time_out(ledger: Ledger, queue: Queue, lease: Lease) -> None:
    """No answer came in time."""
    pieces = _held(queue, lease, lease.runs)
    queue.revoke(lease)
    for piece in pieces:
        ledger.notice(NoticeKind.ACKNOWLEDGE_TIMED_OUT, queue, first=piece.first, count=piece.count)
    if lease.confirmed:
        queue.abandon(lease)
        return
    for piece in pieces:
        if queue.handler is None:
            conclude(ledger, queue, piece, Verdict(Answer.NEGATIVE, "no answer in time"))
            continue
        for offset in range(piece.first, piece.end):
            answer = queue.handler.timed_out(queue.name, offset)
            conclude(ledger, queue, piece.part(offset, offset + 1), Verdict(answer, "no answer in time"))


def lose(ledger: Ledger, queue: Queue, consumer: str) -> None:
    """A consumer is gone: what it had not answered goes back by the queue's `put_back`."""
    for lease in [lease for lease in queue.leases.values() if consumer in lease.consumers]:
        others = [name for name in lease.consumers if name != consumer and name in queue.consumers]
        if others:
            _decline(ledger, queue, lease, consumer, Verdict(Answer.NEGATIVE, "consumer lost", consumer=consumer))
            continue
        pieces = _held(queue, lease, lease.runs)
        queue.revoke(lease)
        if lease.confirmed:
            queue.abandon(lease)
            continue
        for piece in pieces:
            put_back_lost(ledger, queue, piece)


def recount(queue: Queue) -> None:
    """Messages in flight ended without their consumer's answer: a delivery with none left is over."""
    for lease in list(queue.leases.values()):
        lease.open = sum(piece.count for piece in _held(queue, lease, lease.runs))
        if not lease.open:
            queue.revoke(lease)


def put_back_lost(ledger: Ledger, queue: Queue, piece: Piece, *, attempted: bool = True) -> None:
    """Messages in flight to a consumer that is gone. Those it had not begun with do not count as attempted."""
    options = queue.options
    if options.put_back is PutBack.NO:
        dead = Event(queue.name, State.DEAD, piece.first, piece.count, reason="consumer lost")
        ledger.event(queue, State.FETCHED, dead)
        return
    due = ledger.now + options.put_back_delay if options.put_back_delay else None
    ahead = options.put_back is PutBack.PRIORITY
    back = Event(
        queue.name, State.QUEUED, piece.first, piece.count,
        attempt=piece.attempt if attempted else piece.attempt - 1, reason="consumer lost", due=due, ahead=ahead,
    )  # fmt: skip
    ledger.event(queue, State.FETCHED, back)


def conclude(ledger: Ledger, queue: Queue, piece: Piece, verdict: Verdict) -> None:
    """Carry out an answer for messages in flight."""
    name, first, count = queue.name, piece.first, piece.count
    consumer, reason, who = verdict.consumer, verdict.reason, verdict.who

    def ends_as(state: State, why: str) -> None:
        event = Event(name, state, first, count, consumer, piece.attempt, reason or why, who=who, detail=verdict.detail)
        ledger.event(queue, State.FETCHED, event)

    match verdict.answer:
        case Answer.ACKNOWLEDGE:
            success = Event(name, State.SUCCESS, first, count, consumer)
            ledger.event(queue, State.FETCHED, success)
            ledger.event(queue, State.SUCCESS, Event(name, State.COMPLETED, first, count))
        case Answer.NEGATIVE if queue.options.put_back is PutBack.NO:
            ends_as(State.DEAD, "negative answer")
        case Answer.NEGATIVE:
            delay = queue.options.put_back_delay if verdict.delay is None else verdict.delay
            ahead = queue.options.put_back is PutBack.PRIORITY
            _retry(ledger, queue, piece, verdict, delay, ahead)
        case Answer.RETRY:
            _retry(ledger, queue, piece, verdict, verdict.delay or 0, ahead=False)
        case Answer.RELEASE:
            due = ledger.now + verdict.delay if verdict.delay else None
            back = Event(name, State.QUEUED, first, count, consumer, piece.attempt - 1, reason or "not now", due)
            ledger.event(queue, State.FETCHED, back)
        case Answer.INVALID:
            ends_as(State.INVALID, "invalid")
        case Answer.NOT_INTERESTED:
            ends_as(State.NOT_INTERESTED, "not interested")
        case Answer.DEAD:
            ends_as(State.DEAD, "given up")


def _retry(ledger: Ledger, queue: Queue, piece: Piece, verdict: Verdict, delay: int, ahead: bool) -> None:
    due = ledger.now + delay if delay else None
    failed = Event(
        queue.name, State.RETRY, piece.first, piece.count, verdict.consumer, piece.attempt,
        verdict.reason or "negative answer", due, ahead, detail=verdict.detail,
    )  # fmt: skip
    ledger.event(queue, State.FETCHED, failed)
    if due is None:
        again = Event(queue.name, State.QUEUED, piece.first, piece.count, attempt=piece.attempt, ahead=ahead)
        ledger.event(queue, State.RETRY, again)


def _held(queue: Queue, lease: Lease, runs: Sequence[tuple[int, int]]) -> list[Piece]:
    """The parts of these runs still in flight under this lease."""
    return [piece for first, count in runs for piece in queue.flights.find(first, count) if piece.lease == lease.token]


def _reviewed(queue: Queue, pieces: list[Piece], verdict: Verdict) -> list[tuple[Piece, Verdict]]:
    """Each message with the verdict that the queue's delivery handler makes of it."""
    if queue.handler is None:
        return [(piece, verdict) for piece in pieces]
    reviewed = []
    for piece in pieces:
        for offset in range(piece.first, piece.end):
            answer = queue.handler.answered(queue.name, offset, verdict.answer)
            changed = verdict if answer is verdict.answer else msgspec.structs.replace(verdict, answer=answer)
            reviewed.append((piece.part(offset, offset + 1), changed))
    return reviewed


def _count_confirmation(ledger: Ledger, queue: Queue, lease: Lease, piece: Piece, verdict: Verdict) -> list[Piece]:
    """One of several confirmations. Such a delivery carries a single message."""
    consumer = verdict.consumer or ""
    if verdict.answer is not Answer.ACKNOWLEDGE:
        _decline(ledger, queue, lease, consumer, verdict)
        return [piece]
    success = Event(queue.name, State.SUCCESS, piece.first, piece.count, consumer)
    if lease.confirmed:
        ledger.confirm_again(queue, success)
    else:
        ledger.event(queue, State.FETCHED, success)
    lease.confirmed.add(consumer)
    queue.answered_by(consumer)
    if len(lease.confirmed) >= lease.needed:
        ledger.event(queue, State.SUCCESS, Event(queue.name, State.COMPLETED, piece.first, piece.count))
        queue.revoke(lease)
    else:
        _end_if_all_spoke(ledger, queue, lease, verdict)
    return [piece]


def _decline(ledger: Ledger, queue: Queue, lease: Lease, consumer: str, verdict: Verdict) -> None:
    if consumer not in lease.confirmed and consumer not in lease.declined:
        lease.declined.add(consumer)
        queue.answered_by(consumer)
        _end_if_all_spoke(ledger, queue, lease, verdict)


def _end_if_all_spoke(ledger: Ledger, queue: Queue, lease: Lease, verdict: Verdict) -> None:
    if len(lease.confirmed) + len(lease.declined) < len(lease.consumers):
        return
    pieces = _held(queue, lease, lease.runs)
    queue.revoke(lease)
    if lease.confirmed:
        queue.abandon(lease)
        return
    for piece in pieces:
        conclude(ledger, queue, piece, verdict)
