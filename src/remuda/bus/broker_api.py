"""Everything of the broker that the bus uses: imported here, and nowhere else in the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from remuda.broker.clock import Clock, steady_clock
from remuda.broker.delivery import Answers as BaseDelivery
from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.embedded import EmbeddedBroker
from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.core import operators
from remuda.core.core import Core
from remuda.core.effects import Answer as Outcome
from remuda.core.effects import Sending
from remuda.core.info import QueueInfo
from remuda.core.operators import Parked
from remuda.core.operators import Selection as MessageFilter
from remuda.core.settling import Verdict as Settlement
from remuda.model.document import Document
from remuda.model.errors import RemudaError
from remuda.model.records import Event
from remuda.model.state import State

T = TypeVar("T")

__all__ = [
    "AsyncDelivery",
    "BaseDelivery",
    "Broker",
    "Clock",
    "Delivery",
    "EmbeddedBroker",
    "MessageFilter",
    "Outcome",
    "Parked",
    "QueueInfo",
    "Sending",
    "Settlement",
    "clear_waiting",
    "end_message",
    "move_waiting",
    "next_wake",
    "open_broker",
    "outcome_of",
    "reprocess_retries",
    "settlement",
    "steady_clock",
]


def settlement(
    outcome: Outcome,
    reason: str | None = None,
    delay: int | None = None,
    consumer: str | None = None,
    detail: str | None = None,
) -> Settlement:
    """What shall become of delivered messages; without a delay the queue decides when."""
    return Settlement(outcome, reason, delay, consumer, detail=detail)


def outcome_of(settled: Settlement) -> Outcome:
    return settled.answer


def end_message(broker: Broker, queue: str, offset: int, reason: str, who: str | None) -> bool:
    """End one message that waits in a queue, or for its time; False if it is in flight or has ended."""

    def end(core: Core, now: int) -> int:
        core.ledger.at(now)
        found = core.queue(queue)
        found.release_due(now)
        if any(True for _ in found.flights.find(offset, 1)):
            return 0
        count = operators.end(core.ledger, found, [(offset, 1)], reason, who)
        core._after(found)
        return count

    return bool(_do(broker, end))


def clear_waiting(broker: Broker, queue: str, wanted: Callable[[Document], bool], who: str | None) -> int:
    """End the messages of a queue that wait, or wait for their time, and that are wanted."""

    def waiting(core: Core, now: int) -> list[tuple[int, int]]:
        found = core.queue(queue)
        lanes = [(first, count) for lane in found.lanes() for first, count, _ in lane.runs()]
        return lanes + [(piece.first, piece.count) for piece in found.delayed]

    offsets = [offset for first, count in _do(broker, waiting) for offset in range(first, first + count)]
    chosen = [offset for offset in offsets if wanted(broker.message(offset))]
    return sum(end_message(broker, queue, offset, "cleared", who) for offset in chosen)


def reprocess_retries(broker: Broker, queue: str, chosen: MessageFilter, who: str | None) -> int:
    """Send messages that wait for a retry back to the queue at once, with a fresh count of attempts."""

    def reprocess(core: Core, now: int) -> int:
        core.ledger.at(now)
        found = core.queue(queue)
        pieces = [
            piece
            for piece in found.delayed
            if piece.state is State.RETRY
            and chosen.since <= piece.time
            and (chosen.until is None or piece.time < chosen.until)
        ]
        for piece in pieces:
            again = Event(queue, State.QUEUED, piece.first, piece.count, reason="reprocessed", who=who)
            core.ledger.event(found, State.RETRY, again)
        core._after(found)
        return sum(piece.count for piece in pieces)

    def offsets(core: Core, now: int) -> list[int]:
        delayed = [piece for piece in core.queue(queue).delayed if piece.state is State.RETRY]
        return [offset for piece in delayed for offset in range(piece.first, piece.end)]

    if chosen.reason is None:
        return _do(broker, reprocess)
    count = 0
    for offset in _do(broker, offsets):
        view = next(view for view in broker.message(offset).queues if view.queue == queue)
        if chosen.reason in (view.reason or "") and chosen.since <= view.modified < (chosen.until or 1 << 62):
            count += _do(broker, lambda core, now, at=offset: _retry_now(core, now, queue, at, who))  # type: ignore[misc]
    return count


def _retry_now(core: Core, now: int, queue: str, offset: int, who: str | None) -> int:
    core.ledger.at(now)
    found = core.queue(queue)
    pieces = [piece for piece in found.delayed.find(offset, 1) if piece.state is State.RETRY]
    for piece in pieces:
        again = Event(queue, State.QUEUED, piece.first, piece.count, reason="reprocessed", who=who)
        core.ledger.event(found, State.RETRY, again)
    core._after(found)
    return len(pieces)


def move_waiting(broker: Broker, source: str, target: str, who: str | None) -> int:
    """Move what waits in a pull queue to another; what waits for its time stays."""
    moved = 0
    while (delivery := broker.pull(source, 500)) is not None:
        delivery.answer(settlement(Outcome.DEAD, f"moved to {target}", consumer=delivery.consumer), None, target)
        broker.forget(source, MessageFilter(offsets=tuple(delivery.runs)), who=who)
        moved += len(delivery)
    return moved


def next_wake(broker: Broker) -> int:
    """Do what time demands, and give when it next will."""
    assert isinstance(broker, EmbeddedBroker)
    return broker.host.tick()


def _do(broker: Broker, verb: Callable[[Core, int], T]) -> T:
    if not isinstance(broker, EmbeddedBroker):
        raise RemudaError(f"{type(broker).__name__} cannot do this; an embedded broker can")
    return broker._finish(broker.host._do(verb))
