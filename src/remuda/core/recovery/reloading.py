"""Going on after an error in a living process: the queues were rebuilt from the log, and whoever used them before still
does. Consumers, their credit, the deliveries they hold and the pulls that wait are taken over from the old core."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

import msgspec

from remuda.core import delivering
from remuda.core.queues.credit import Consumer, Credit
from remuda.core.queues.leases import Lease
from remuda.core.queues.queue import Queue
from remuda.core.queues.ranges import MessageRange
from remuda.core.queues.ready import NEVER
from remuda.model.operations.commands import Command, HandOver, Settle
from remuda.model.state import State

if TYPE_CHECKING:
    from remuda.core.registry import Registry

_REASON = "the broker was restored after an error"


class Left(msgspec.Struct):
    """What an interrupted command left behind."""

    tags: Container[int]
    """Of the subscriptions and pulls that go on."""
    waiting: set[int]
    """Of those, the ones to which something has yet to come."""
    began: int
    """The position at which the command began: deliveries from there on never reached anybody."""
    command: Command | None = None
    claimed_later: bool = False
    """Whether consumers of another process may yet reclaim what they hold."""


def adopt(registry: Registry, old: Registry, left: Left) -> None:
    """Give the queues their consumers, deliveries and waiting pulls back."""
    credits: dict[int, Credit] = {}
    for queue in registry.queues.values():
        before = old.queues.get(queue.name)
        if before is not None:
            _adopt_consumers(registry, queue, before, left.tags, credits)
            _adopt_leases(queue, before, left, registry.recorder.now)
            for waiter in (*before.stopped, *before.waiters.values()):
                if waiter.tag in left.waiting and waiter.until > registry.recorder.now:
                    queue.wait(waiter)
        for piece in list(queue.flights):
            if piece.lease not in queue.leases:
                _put_back(registry, queue, piece, left)
    known = {tag for queue in registry.queues.values() for tag in queue.waiters}
    known |= {consumer.tag for queue in registry.queues.values() for consumer in queue.consumers.values()}
    for tag in left.waiting - known:  # as of a queue that the interrupted command had just created, or removed
        registry.recorder.close(tag)
    for queue in list(registry.queues.values()):
        registry.after(queue)


def _adopt_consumers(
    registry: Registry, queue: Queue, before: Queue, tags: Container[int], credits: dict[int, Credit]
) -> None:
    queue.serving, queue.late_answers = before.serving, before.late_answers
    for consumer in before.consumers.values():
        if consumer.tag not in tags:
            continue
        credit = credits.get(id(consumer.credit))
        if credit is None:
            credit = credits[id(consumer.credit)] = Credit(consumer.credit.limit)
            if consumer.group is not None:
                registry.credits[consumer.group] = credit
        queue.join(
            Consumer(
                consumer.name, consumer.batch, consumer.joined, consumer.tag, credit, consumer.served,
                group=consumer.group, priority=consumer.priority,
            )
        )  # fmt: skip
    queue.had_consumers = before.had_consumers


def _adopt_leases(queue: Queue, before: Queue, left: Left, now: int) -> None:
    """Deliveries go on under their leases. Replay gave each run the position of its event, and those of one delivery
    are neighbours: so each belongs to the last delivery before it, if that has the message."""
    known = {token: lease for token, lease in before.leases.items() if token < left.began}
    command = left.command
    if isinstance(command, Settle | HandOver) and command.queue == queue.name and command.lease not in known:
        known[command.lease] = _reconstructed(queue, command, before.leases, now)
    tokens = sorted(known)
    held: dict[int, list[MessageRange]] = {}
    for piece in list(queue.flights):
        at = bisect_right(tokens, piece.lease) - 1
        lease = known[tokens[at]] if at >= 0 else None
        if lease is not None and _has(lease, piece):
            if piece.lease != lease.token:
                queue.flights.remove(piece.first, piece.count)
                queue.flights.add(msgspec.structs.replace(piece, lease=lease.token))
            held.setdefault(lease.token, []).append(piece)
    for token, pieces in held.items():
        again = msgspec.structs.replace(known[token], open=sum(piece.count for piece in pieces))
        if isinstance(command, HandOver) and token == command.lease:
            again.taken -= {command.consumer}
            again.awaited |= {command.consumer}
        queue.take_over(again)


def _has(lease: Lease, piece: MessageRange) -> bool:
    return any(first < piece.end and piece.first < first + count for first, count in lease.runs)


def _reconstructed(queue: Queue, command: Settle | HandOver, before: Iterable[int], now: int) -> Lease:
    """The lease that an interrupted command had already ended."""
    end = min((token for token in before if token > command.lease), default=NEVER)
    runs = [(piece.first, piece.count) for piece in queue.flights if command.lease <= piece.lease < end]
    settles = isinstance(command, Settle)
    consumer = (command.settlement.consumer or "") if isinstance(command, Settle) else command.consumer
    total = sum(count for _, count in runs)
    return Lease(
        command.lease, (consumer,), runs, now + queue.options.acknowledge_timeout, total,
        pulled=consumer not in queue.consumers, sent=0 if settles or queue.waits else total,
        awaited=frozenset() if settles else frozenset({consumer}), kicks=not settles and not queue.asks,
    )  # fmt: skip


def _put_back(registry: Registry, queue: Queue, piece: MessageRange, left: Left) -> None:
    """Messages in flight to nobody."""
    if piece.state is State.SUCCESS:
        queue.let_go(piece)
    elif piece.lease >= left.began:
        delivering.put_back_lost(registry, queue, piece, _REASON, attempted=False, seen=False)
    elif not left.claimed_later:
        delivering.put_back_lost(registry, queue, piece, _REASON)
