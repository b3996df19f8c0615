"""Messages go out: to whom the strategy says, or to who asked, under a lease."""

from __future__ import annotations

from itertools import groupby

from remuda.core import operators
from remuda.core.effects import NoticeKind, Sending
from remuda.core.lane import Run
from remuda.core.ledger import Ledger
from remuda.core.pieces import Piece
from remuda.core.queue import Lease, Queue, Waiter
from remuda.model.options import PER_TOPIC, Acknowledge, Status
from remuda.model.records import Event
from remuda.model.state import State

CONSUMING = frozenset({Status.RUNNING, Status.ONLY_CONSUME})

Attempted = tuple[int, int, int]
"""First offset, count, attempt."""


def dispatch(ledger: Ledger, queue: Queue) -> None:
    """Send whatever can be sent now."""
    if queue.next_send <= ledger.now:
        queue.next_send = 0
    if (not queue.consumers and not queue.waiters) or not queue.waiting or queue.status not in CONSUMING:
        return
    expire(ledger, queue)
    _serve_waiters(ledger, queue)
    pace = queue.options.delay_between_messages
    while queue.waiting:
        if pace and queue.next_send > ledger.now:
            break
        assignment = queue.strategy.next(queue)
        if assignment is None:
            break
        send(ledger, queue, assignment.consumers, queue.peek(1 if pace else assignment.count))
        if pace:
            queue.next_send = ledger.now + pace


def pull(ledger: Ledger, queue: Queue, waiter: Waiter) -> bool:
    """Answer a pull request; False when nothing waits."""
    if queue.status not in CONSUMING:
        return False
    expire(ledger, queue)
    if not queue.waiting:
        return False
    runs = _newest(queue, waiter.count) if waiter.newest else queue.peek(waiter.count)
    send(ledger, queue, (waiter.consumer,), runs, waiter.request)
    if waiter.clear_after != "none":
        operators.clear(ledger, queue, waiter.clear_after, waiter.consumer)
        ledger.recount(waiter.request, queue)
    return True


def expire(ledger: Ledger, queue: Queue) -> None:
    """Waiting messages whose deadline has come end here, or go on to the queue named for them."""
    queue.release_due(ledger.now)
    if queue.soonest > ledger.now:
        return
    for first, count, high in _joined(queue, ledger.now):
        piece = Piece(first, count, State.QUEUED, high=high)
        end_expired(ledger, queue, piece, lifted=[piece])


def end_expired(ledger: Ledger, queue: Queue, piece: Piece, lifted: list[Piece] | None = None) -> None:
    """The deadline of these messages, which wait or are delayed, has come."""
    first, count = piece.first, piece.count
    ledger.notice(NoticeKind.TIMED_OUT, queue, first=first, count=count)
    ledger.event(queue, piece.state, Event(queue.name, State.DEAD, first, count, reason="expired"), lifted=lifted)
    if queue.options.expired_queue:
        ledger.forward(queue.options.expired_queue, first, count, piece.high, f"expired in {queue.name}")


def send(ledger: Ledger, queue: Queue, consumers: tuple[str, ...], runs: list[Run], request: int | None = None) -> None:
    """Hand these waiting messages to the consumers, each of whom gets all."""
    batch = _willing(ledger, queue, consumers, _attempts(queue, runs))
    if not batch:
        return
    token = ledger.next_position
    asks = queue.options.acknowledge is not Acknowledge.NONE
    label = ", ".join(consumers)
    for first, count, attempt in batch:
        fetched = Event(queue.name, State.FETCHED, first, count, consumer=label, attempt=attempt)
        ledger.event(queue, State.QUEUED, fetched, lease=token)
        ledger.notice(NoticeKind.CONSUMED, queue, first=first, count=count, consumer=label)
    runs_only = [(first, count) for first, count, _ in batch]
    deadline = ledger.now + queue.options.acknowledge_timeout
    if asks:
        total = sum(count for _, count in runs_only)
        queue.grant(Lease(token, consumers, runs_only, deadline, total, set(), set(), _needed(queue, batch[0][0])))
    else:
        for first, count, _ in batch:
            ledger.event(queue, State.FETCHED, Event(queue.name, State.KICKED, first, count, consumer=label))
    queue.serving += 1
    for name in consumers:
        member = queue.consumers.get(name)
        if member is not None:
            member.served = queue.serving
        attempts = [attempt for _, _, attempt in batch]
        lease = token if asks else None
        ledger.send(Sending(queue.name, name, lease, runs_only, attempts, deadline, queue.remaining, request))
    if queue.handler is not None:
        for first, count in runs_only:
            for offset in range(first, first + count):
                queue.handler.sent(queue.name, offset, consumers)


def _serve_waiters(ledger: Ledger, queue: Queue) -> None:
    while queue.waiters and queue.waiting:
        pull(ledger, queue, queue.waiters.popleft())


def _newest(queue: Queue, count: int) -> list[Run]:
    found: list[Run] = []
    for lane in queue.lanes():
        if len(found) < count:
            found += lane.peek_newest(count - len(found))
    return found


def _attempts(queue: Queue, runs: list[Run]) -> list[Attempted]:
    if not queue.attempts:
        return [(first, count, 1) for first, count, _ in runs]
    made = queue.attempts
    batch: list[Attempted] = []
    for first, count, _ in runs:
        for attempt, offsets in groupby(range(first, first + count), key=lambda offset: made.get(offset, 0) + 1):
            block = list(offsets)
            batch.append((block[0], len(block), attempt))
    return batch


def _willing(ledger: Ledger, queue: Queue, consumers: tuple[str, ...], batch: list[Attempted]) -> list[Attempted]:
    """The batch without the messages that the queue's delivery handler withholds; those end with its reason."""
    if queue.handler is None:
        return batch
    willing: list[Attempted] = []
    for first, count, attempt in batch:
        for offset in range(first, first + count):
            reason = queue.handler.sending(queue.name, offset, consumers)
            if reason is None:
                willing.append((offset, 1, attempt))
            else:
                ledger.event(queue, State.QUEUED, Event(queue.name, State.DEAD, offset, reason=reason))
    return willing


def _needed(queue: Queue, offset: int) -> int:
    wanted = queue.options.confirmations
    return queue.topic_counts.get(offset, 1) if wanted == PER_TOPIC else wanted


def _joined(queue: Queue, now: int) -> list[tuple[int, int, bool]]:
    """Runs that expire together, neighbours as one."""
    joined: list[tuple[int, int, bool]] = []
    for lane in queue.lanes():
        high = lane is queue.high
        for first, count, _ in lane.expire(now):
            if joined and joined[-1][0] + joined[-1][1] == first and joined[-1][2] is high:
                joined[-1] = (joined[-1][0], joined[-1][1] + count, high)
            else:
                joined.append((first, count, high))
    return joined
