"""Deliveries under a lease (Q1-Q3, Q9, M8): to the consumers that the strategy chooses or to a pull, until an answer, a
timeout or the loss of the consumer ends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from remuda.core.effects import Dispatch
from remuda.core.queues.leases import Lease, Waiter
from remuda.core.queues.queue import Queue
from remuda.core.queues.ranges import MessageRange
from remuda.core.queues.ready import ReadyRun
from remuda.model.queues.notices import NoticeKind
from remuda.model.queues.options import PER_TOPIC, PutBack
from remuda.model.records import EXPIRED, NEVER_DELIVERED, Event
from remuda.model.settlement import Outcome, Settlement, verdict
from remuda.model.state import State

if TYPE_CHECKING:
    from remuda.core.registry import Registry


Portion = tuple[ReadyRun, int, bool]
"""Part of a delivery whose messages were delivered equally often before: the attempt, and whether it is one more."""
_NOBODY: Final[frozenset[str]] = frozenset()
# Looking up a member of an Enum is slow.
_QUEUED: Final = State.QUEUED
_FETCHED: Final = State.FETCHED
_ACK: Final = Outcome.ACK

# Sending


def dispatch(registry: Registry, queue: Queue) -> None:
    """Send all messages that can be sent now."""
    recorder = registry.recorder
    if (queue.pace and queue.pauses(recorder.now)) or not queue.consumes:
        return
    if not queue.consumers and not queue.waiters:
        return
    expire(registry, queue)
    one_by_one = queue.pace > 0
    while queue.has_next(recorder.now) and not (one_by_one and queue.pauses(recorder.now)):
        if queue.waiters:
            waiter = next(iter(queue.waiters.values()))
            if serve(registry, queue, waiter):
                queue.stop_waiting(waiter.tag)
            continue
        assignment = queue.strategy.next(queue) if queue.consumers else None
        if assignment is None:
            break
        runs = take(registry, queue, 1 if one_by_one else assignment.count)
        send(registry, queue, assignment.consumers, runs)


def serve(registry: Registry, queue: Queue, waiter: Waiter) -> bool:
    """Serve a pull request; False if there is nothing for it now."""
    recorder = registry.recorder
    if not queue.consumes or (queue.pace and queue.pauses(recorder.now)):
        return False
    count = 1 if queue.pace else waiter.count
    if waiter.newest:
        queue.release_due(recorder.now)  # the newest is known only when all due messages are in their lanes
    expire(registry, queue, count)
    sent = False
    while not sent and queue.has_next(recorder.now):
        runs = take(registry, queue, count, newest=waiter.newest)
        sent = send(registry, queue, (waiter.consumer,), runs, waiter)
    return sent


def send(
    registry: Registry, queue: Queue, consumers: tuple[str, ...], runs: list[ReadyRun], waiter: Waiter | None = None
) -> bool:
    """Deliver messages that were taken out of their lanes to all of these consumers. False if none may be sent."""
    recorder = registry.recorder
    portions = _portions(queue, runs)
    if queue.handler is not None:
        portions = _sendable(registry, queue, consumers, portions)
    if not portions:
        return False
    token = recorder.next_position
    asks = queue.asks
    label = consumers[0] if len(consumers) == 1 else ", ".join(consumers)
    chosen: list[tuple[int, int]] = []
    attempts: list[int] = []
    redelivered: tuple[bool, ...] = ()
    total = 0
    for run, attempt, again in portions:
        first, count = run.first, run.count
        recorder.event(queue, _QUEUED, Event(queue.name, _FETCHED, first, count, label, attempt), token, (run,))
        if recorder.wants_notices:
            recorder.notice(NoticeKind.CONSUMED, queue, first=first, count=count, consumer=label)
        chosen.append((first, count))
        attempts.append(attempt)
        total += count
        if again:
            redelivered = tuple(again for _, _, again in portions)
    deadline = recorder.now + queue.options.acknowledge_timeout
    # A pull takes its messages at once; what is sent to a subscriber belongs to the queue until it takes it.
    subscribed = waiter is None
    if asks or subscribed:
        needed = _needed(queue, chosen[0][0]) if asks and subscribed else 1
        queue.grant(
            Lease(
                token, consumers, chosen, deadline, total, _NOBODY, _NOBODY, needed, False, not subscribed,
                total if subscribed and not queue.waits else 0, frozenset(consumers) if subscribed else _NOBODY,
                _NOBODY, not asks,
            )
        )  # fmt: skip
    else:
        for first, count in chosen:
            recorder.event(queue, State.FETCHED, Event(queue.name, State.KICKED, first, count, consumer=label))
    if waiter is not None and waiter.clear_after != "none":
        registry.clear(queue, waiter.clear_after, who=waiter.consumer)
    arrivals = _arrivals(queue, chosen) if queue.arrivals.size else {}
    for name in consumers:
        consumer = queue.consumers.get(name) if waiter is None else None
        tag = consumer.tag if consumer is not None else waiter.tag if waiter is not None else 0
        recorder.send(
            Dispatch(
                queue.name, name, tag, token if asks or subscribed else None, chosen, attempts, deadline,
                queue.ready.by_rank, redelivered, subscribed, len(consumers) > 1, arrivals,
            )
        )  # fmt: skip
        if consumer is not None:
            queue.served(consumer)
    if queue.shares:
        registry.limits.served(queue)
    if queue.handler is not None:
        for first, count in chosen:
            for offset in range(first, first + count):
                queue.handler.sent(queue.name, offset, consumers)
    return True


def _arrivals(queue: Queue, runs: list[tuple[int, int]]) -> dict[int, str]:
    return {
        offset: queue.arrivals[offset]
        for first, count in runs
        for offset in range(first, first + count)
        if offset in queue.arrivals
    }


def hand_over(registry: Registry, queue: Queue, lease: Lease, consumer: str) -> list[tuple[int, int]]:
    """A delivery reaches a consumer. Returns the runs it may process; those that expired before that end here."""
    recorder = registry.recorder
    if lease.taken:
        # Another consumer has it, and may have answered by now; this one gets what was sent to it all the same.
        queue.handed_over(lease, consumer)
        registry.after(queue)
        return lease.runs
    held = _held(queue, lease, lease.runs)
    alive = [piece for piece in held if piece.deadline > recorder.now]
    if len(alive) < len(held):
        for piece in held:
            if piece.deadline <= recorder.now and piece.state is State.FETCHED:
                end_expired(registry, queue, State.FETCHED, piece.first, piece.count, piece.priority)
        gone = sum(piece.count for piece in held) - sum(piece.count for piece in alive)
        queue.give_back(lease, lease.silent, gone)
        lease.open -= gone
    lease.runs = runs = [(piece.first, piece.count) for piece in alive]
    if runs:
        queue.handed_over(lease, consumer)
        queue.extend(lease, recorder.now + queue.options.acknowledge_timeout)  # its time begins now
    if lease.kicks:
        label = ", ".join(lease.consumers)
        for first, count in runs:
            recorder.event(queue, State.FETCHED, Event(queue.name, State.KICKED, first, count, label))
        lease.open = 0
    if lease.open <= 0:
        queue.revoke(lease)
    registry.after(queue)
    return runs


def take(registry: Registry, queue: Queue, count: int, *, newest: bool = False) -> list[ReadyRun]:
    """Take the next messages out of their lanes."""
    now = registry.recorder.now
    if queue.ready.soonest <= now or (queue.delayed.soonest <= now and not newest):
        expire(registry, queue, count)
    return queue.take(count, now, newest)


def expire(registry: Registry, queue: Queue, count: int = 1) -> None:
    """Bring the next `count` due messages into their lanes. Those that have expired end here, or go on to the queue for
    expired messages. If that one is full, it may evict to here what is overdue as well."""
    now = registry.recorder.now
    while True:
        queue.advance(now, count)
        if queue.ready.soonest > now:
            return
        for run in queue.ready.expire(now):
            end_expired(registry, queue, State.QUEUED, run.first, run.count, run.priority, lifted=[run])


def end_expired(
    registry: Registry, queue: Queue, source: State, first: int, count: int, priority: int,
    lifted: list[ReadyRun] | None = None,
) -> None:  # fmt: skip
    """End messages whose deadline has come."""
    registry.recorder.notice(NoticeKind.TIMED_OUT, queue, first=first, count=count)
    to = queue.options.expired_queue or queue.options.dead_letter_queue
    if to is not None and queue.arrivals.size and _goes_round(registry, queue):
        # Queues that send each other what expired would do so for ever: what came here that way stays.
        for offset in range(first, first + count):
            stays = queue.arrivals.get(offset, "").endswith(f": {EXPIRED}")
            part = None if lifted is None else [ReadyRun(offset, 1, lifted[0].deadline, priority)]
            registry.end(
                queue, source, offset, 1, EXPIRED, priority=priority, to=None if stays else to, lifted=part
            )  # fmt: skip
        return
    registry.end(queue, source, first, count, EXPIRED, priority=priority, to=to, lifted=lifted)


def _goes_round(registry: Registry, queue: Queue) -> bool:
    """Whether what expires here, and again where it goes, could come back."""
    seen, here = set[str](), queue
    while here.name not in seen:
        seen.add(here.name)
        to = here.options.expired_queue or here.options.dead_letter_queue
        following = None if to is None else registry.queues.get(to)
        if following is None:
            return False
        here = following
    return here is queue


# Answers, timeouts and lost consumers


def settle(
    registry: Registry, queue: Queue, token: int, settlement: Settlement, runs: Sequence[tuple[int, int]] | None
) -> int:
    """Answer for some or all messages of a delivery. Returns how many were settled.

    An answer that comes too late, or for the second time, changes nothing and is counted as late.
    """
    recorder = registry.recorder
    lease = queue.leases.get(token)
    consumer = settlement.consumer
    pieces: list[MessageRange] = []
    if (
        lease is not None
        and consumer in lease.consumers
        and consumer not in lease.confirmed
        and consumer not in lease.declined
    ):
        pieces = _held(queue, lease, lease.runs if runs is None else runs)
    if lease is None or not pieces:
        recorder.late_answers += 1
        queue.late_answers += 1
        return 0
    if settlement.to is not None and settlement.to != queue.name:
        if settlement.to not in registry.queues:
            registry.check_creation(settlement.to)
        if settlement.whole:
            registry.check_taken(settlement.to, pieces)
    if recorder.wants_notices:
        for piece in pieces:
            recorder.notice(
                NoticeKind.ACKNOWLEDGED, queue, first=piece.first, count=piece.count, consumer=consumer,
                detail=settlement.outcome.value,
            )  # fmt: skip
    queue.answered(lease)
    if lease.needed != 1:
        _count_confirmation(registry, queue, lease, pieces[0], settlement)
        return pieces[0].count
    settled = 0
    for piece in pieces:
        settled += piece.count
        if queue.handler is None:
            conclude(registry, queue, piece, settlement)
        else:
            for part, decided in _reviewed(queue, [piece], settlement):
                conclude(registry, queue, part, decided)
    if not lease.pulled:
        queue.give_back(lease, lease.silent, settled)
    lease.open -= settled
    if lease.open <= 0:
        queue.revoke(lease)
    return settled


def time_out(registry: Registry, queue: Queue, lease: Lease) -> None:
    """No answer came in time."""
    pieces = _held(queue, lease, lease.runs)
    unseen = lease.awaits_hand_over
    queue.revoke(lease, over=False)
    for piece in pieces:
        registry.recorder.notice(NoticeKind.ACKNOWLEDGE_TIMED_OUT, queue, first=piece.first, count=piece.count)
    if lease.confirmed:
        queue.abandon(lease)
        return
    for piece in pieces:
        if unseen:
            put_back_lost(registry, queue, piece, "not taken in time", attempted=False, seen=False)
        elif queue.handler is None:
            conclude(registry, queue, piece, Settlement(Outcome.NACK, "no answer in time"))
        else:
            for offset in range(piece.first, piece.end):
                outcome, failure = queue.handler.timed_out(queue.name, offset)
                decided = Settlement(outcome, failure or "no answer in time")
                conclude(registry, queue, piece.part(offset, offset + 1), decided)


def lose(registry: Registry, queue: Queue, consumer: str, begun: Mapping[int, Sequence[tuple[int, int]]]) -> None:
    """A consumer is gone: what it had not answered goes back by the queue's `put_back`."""
    for lease in [lease for lease in queue.leases.values() if consumer in lease.consumers and not lease.pulled]:
        others = [name for name in lease.consumers if name != consumer and name in queue.consumers]
        unseen = lease.awaits_hand_over
        lease.awaited -= {consumer}
        if others:
            gone = Settlement(Outcome.NACK, "consumer lost", consumer=consumer)
            _decline(registry, queue, lease, consumer, gone)
            continue
        pieces = _held(queue, lease, lease.runs)
        queue.revoke(lease, over=False)
        if lease.confirmed:
            queue.abandon(lease)
            continue
        for piece in pieces:
            if lease.token in begun and not unseen:
                put_back_begun(registry, queue, piece, _clipped(begun[lease.token], piece))
            else:
                put_back_lost(registry, queue, piece, attempted=not unseen, seen=not unseen)


def recount(queue: Queue, tokens: Iterable[int]) -> None:
    """Update deliveries of which messages ended without the consumer's answer: one with none left is over."""
    for lease in [queue.leases[token] for token in tokens if token in queue.leases]:
        left = sum(piece.count for piece in _held(queue, lease, lease.runs))
        if left < lease.open:
            queue.give_back(lease, lease.silent, lease.open - left)
            lease.open = left
        if not lease.open:
            queue.revoke(lease)


def put_back_lost(
    registry: Registry, queue: Queue, piece: MessageRange, reason: str = "consumer lost", *, attempted: bool = True,
    seen: bool = True,
) -> None:  # fmt: skip
    """Put back messages of a consumer that is gone. Those it had not begun do not count as attempted, and those it had
    not seen do not count as delivered."""
    options = queue.options
    if attempted and (options.put_back is PutBack.NO or _is_last(queue, piece)):
        why = reason if options.put_back is PutBack.NO else f"{reason}; delivery limit reached"
        registry.end(
            queue, State.FETCHED, piece.first, piece.count, why, priority=piece.priority, to=options.dead_letter_queue
        )
        return
    due = registry.recorder.now + options.put_back_delay if options.put_back_delay and attempted else None
    before = piece.attempt - 1 if seen or piece.redelivered else NEVER_DELIVERED
    back = Event(
        queue.name, State.QUEUED, piece.first, piece.count,
        attempt=piece.attempt if attempted else before, reason=reason, due=due,
        ahead=options.put_back is PutBack.PRIORITY or not attempted,
    )  # fmt: skip
    registry.recorder.event(queue, State.FETCHED, back)


def put_back_begun(
    registry: Registry, queue: Queue, piece: MessageRange, begun: Sequence[tuple[int, int]] | None
) -> None:
    """Put back messages whose consumer died: those in `begun` count as attempted; with None, all of them do."""
    at = piece.first
    for first, count in [(at, piece.count)] if begun is None else begun:
        if at < first:
            put_back_lost(registry, queue, piece.part(at, first), attempted=False)
        at = first + count
        put_back_lost(registry, queue, piece.part(first, at))
    if at < piece.end:
        put_back_lost(registry, queue, piece.part(at, piece.end), attempted=False)


def abandon(
    registry: Registry, queue: Queue, token: int, consumer: str, begun: Sequence[tuple[int, int]] | None
) -> None:
    """Put back a delivery whose consumer is gone."""
    lease = queue.leases.get(token)
    if lease is None or consumer not in lease.consumers:
        return
    if len(lease.consumers) > 1 or lease.awaits_hand_over or lease.confirmed:
        return  # others have it too, or nobody has it yet: `lose` puts it back when the consumer leaves
    pieces = _held(queue, lease, lease.runs)
    queue.revoke(lease, over=False)
    for piece in pieces:
        put_back_begun(registry, queue, piece, None if begun is None else _clipped(begun, piece))


def _clipped(runs: Sequence[tuple[int, int]], piece: MessageRange) -> list[tuple[int, int]]:
    """The parts of these runs that lie in a range, in order."""
    parts = [(max(first, piece.first), min(first + count, piece.end)) for first, count in sorted(runs)]
    return [(start, stop - start) for start, stop in parts if start < stop]


def reclaim(
    registry: Registry, queue: Queue, token: int, consumer: str, runs: Sequence[tuple[int, int]], pulled: bool
) -> int:
    """A consumer that survived a restart still has these messages: they are in flight to it again, under its lease."""
    lease = queue.leases.get(token)
    if lease is not None:
        if not _held(queue, lease, runs):
            return 0  # a power loss took the consumer's delivery, and its number was given to another
        if consumer not in lease.consumers:
            lease.consumers = (*lease.consumers, consumer)
        return lease.open
    # The events of a delivery have adjacent positions, and replay gave each run the position of its event as lease.
    own = range(token, token + len(runs))
    found: list[tuple[int, int]] = []
    for first, count in runs:
        for piece in queue.flights.find(first, count):
            if piece.state is State.FETCHED and piece.lease in own:
                queue.flights.remove(piece.first, piece.count)
                queue.flights.add(msgspec.structs.replace(piece, lease=token))
                found.append((piece.first, piece.count))
    total = sum(count for _, count in found)
    if total:
        deadline = registry.recorder.now + queue.options.acknowledge_timeout
        uncounted = not pulled and consumer not in queue.consumers
        queue.grant(Lease(token, (consumer,), found, deadline, total, pulled=pulled, uncounted=uncounted))
        registry.plan(queue)
    return total


def conclude(registry: Registry, queue: Queue, piece: MessageRange, settlement: Settlement) -> None:
    """Carry out an answer for messages in flight."""
    if settlement.outcome is _ACK:
        registry.recorder.completed(queue, piece.first, piece.count, settlement.consumer)
    else:
        _conclude_badly(registry, queue, piece, settlement)


def _conclude_badly(registry: Registry, queue: Queue, piece: MessageRange, settlement: Settlement) -> None:
    recorder, first, count = registry.recorder, piece.first, piece.count
    found = verdict(settlement, queue.options, last=_is_last(queue, piece))
    due = recorder.now + found.delay if found.delay else None
    attempt = piece.attempt if found.counts else piece.attempt - 1
    if found.state is State.RETRY or found.state is _QUEUED:
        if found.state is _QUEUED and settlement.awaits:
            if queue.notes.count(first) >= settlement.awaits:
                due = None
            elif due is not None:
                queue.notes.awaited[first] = settlement.awaits
        back = Event(
            queue.name, found.state, first, count, settlement.consumer, attempt, found.reason, due, found.front,
            detail=settlement.detail,
        )  # fmt: skip
        recorder.event(queue, State.FETCHED, back)
        if found.state is State.RETRY and due is None:
            again = Event(queue.name, State.QUEUED, first, count, attempt=attempt, ahead=found.front)
            recorder.event(queue, State.RETRY, again)
        return
    registry.end(
        queue, State.FETCHED, first, count, found.reason, state=found.state, priority=piece.priority, to=found.to,
        consumer=settlement.consumer, attempt=piece.attempt, who=settlement.who, detail=settlement.detail,
    )  # fmt: skip


def _is_last(queue: Queue, piece: MessageRange) -> bool:
    limit = queue.options.delivery_limit
    return bool(limit) and piece.attempt > limit


def _held(queue: Queue, lease: Lease, runs: Sequence[tuple[int, int]]) -> list[MessageRange]:
    """The parts of these runs still in flight under this lease."""
    token, find = lease.token, queue.flights.find
    held: list[MessageRange] = []
    for first, count in runs:
        for piece in find(first, count):
            if piece.lease == token:
                held.append(piece)
    return held


def _portions(queue: Queue, runs: list[ReadyRun]) -> list[Portion]:
    made = queue.attempts
    if not made.size:
        return [(run, 1, False) for run in runs]
    portions: list[Portion] = []
    for run in runs:
        for attempt, block in groupby(range(run.first, run.first + run.count), key=lambda offset: made.get(offset, -1)):
            offsets = list(block)
            part = ReadyRun(offsets[0], len(offsets), run.deadline, run.priority)
            portions.append((part, max(attempt, 0) + 1, attempt >= 0))
    return portions


def _sendable(registry: Registry, queue: Queue, consumers: tuple[str, ...], portions: list[Portion]) -> list[Portion]:
    """The portions without the messages that the queue's delivery handler withholds; those end with its reason."""
    assert queue.handler is not None
    sendable: list[Portion] = []
    for run, attempt, again in portions:
        for offset in range(run.first, run.first + run.count):
            alone = ReadyRun(offset, 1, run.deadline, run.priority)
            reason = queue.handler.sending(queue.name, offset, consumers)
            if reason is None:
                sendable.append((alone, attempt, again))
            else:
                registry.end(queue, State.QUEUED, offset, 1, reason, priority=run.priority, lifted=[alone])
    return sendable


def _needed(queue: Queue, offset: int) -> int:
    wanted = queue.options.confirmations
    return queue.topic_counts.get(offset, 1) if wanted == PER_TOPIC else wanted


def _reviewed(
    queue: Queue, pieces: list[MessageRange], settlement: Settlement
) -> list[tuple[MessageRange, Settlement]]:
    """Each message with the answer that the queue's delivery handler makes of it."""
    if queue.handler is None:
        return [(piece, settlement) for piece in pieces]
    reviewed = []
    for piece in pieces:
        for offset in range(piece.first, piece.end):
            outcome, failure = queue.handler.answered(queue.name, offset, settlement.outcome)
            changed = settlement
            if outcome is not settlement.outcome or failure is not None:
                changed = msgspec.structs.replace(settlement, outcome=outcome, reason=failure or settlement.reason)
            reviewed.append((piece.part(offset, offset + 1), changed))
    return reviewed


def _count_confirmation(
    registry: Registry, queue: Queue, lease: Lease, piece: MessageRange, settlement: Settlement
) -> None:
    """One of several confirmations. Such a delivery carries a single message."""
    recorder = registry.recorder
    consumer = settlement.consumer or ""
    _, settlement = _reviewed(queue, [piece], settlement)[0]
    if settlement.outcome is not Outcome.ACK:
        _decline(registry, queue, lease, consumer, settlement)
        return
    success = Event(queue.name, State.SUCCESS, piece.first, piece.count, consumer)
    if lease.confirmed:
        recorder.stay(queue, success)
    else:
        recorder.event(queue, State.FETCHED, success)
    queue.give_back(lease, (consumer,), lease.open)
    lease.confirmed |= {consumer}
    if len(lease.confirmed) >= lease.needed:
        recorder.event(queue, State.SUCCESS, Event(queue.name, State.COMPLETED, piece.first, piece.count))
        queue.revoke(lease)
    else:
        _end_if_all_answered(registry, queue, lease, settlement)


def _decline(registry: Registry, queue: Queue, lease: Lease, consumer: str, settlement: Settlement) -> None:
    if consumer not in lease.confirmed and consumer not in lease.declined:
        queue.give_back(lease, (consumer,), lease.open)
        lease.declined |= {consumer}
        _end_if_all_answered(registry, queue, lease, settlement)


def _end_if_all_answered(registry: Registry, queue: Queue, lease: Lease, settlement: Settlement) -> None:
    if len(lease.confirmed) + len(lease.declined) < len(lease.consumers):
        return
    pieces = _held(queue, lease, lease.runs)
    queue.revoke(lease, over=bool(lease.confirmed))
    if lease.confirmed:
        queue.abandon(lease)
        return
    for piece in pieces:
        conclude(registry, queue, piece, settlement)
