"""Everything of the broker that the bus uses: imported here, and nowhere else in the bus."""

from __future__ import annotations

from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Delivery, in_hand
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.opening import check_opening, open_broker, waits_for_others
from remuda.broker.options import BrokerKwargs
from remuda.broker.port import Broker, RunLedger
from remuda.broker.threads import EmbeddedBroker
from remuda.model.filters import MessageFilter
from remuda.model.results import Health, QueueInfo
from remuda.model.results import ParkedMessage as Parked
from remuda.model.settlement import Outcome, Settlement
from remuda.model.state import State

__all__ = [
    "AsyncDelivery",
    "BaseDelivery",
    "Broker",
    "BrokerKwargs",
    "Clock",
    "Delivery",
    "EmbeddedBroker",
    "Health",
    "MessageFilter",
    "Outcome",
    "Parked",
    "QueueInfo",
    "RunLedger",
    "Settlement",
    "check_opening",
    "end_message",
    "in_hand",
    "move_waiting",
    "next_wake",
    "open_broker",
    "outcome_of",
    "reprocess_retries",
    "settlement",
    "steady_clock",
    "waits_for_others",
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
    return settled.outcome


def end_message(broker: Broker, queue: str, offset: int, reason: str, who: str | None) -> bool:
    """End one message that waits in a queue, or for its time; False if it is in flight or has ended."""
    return bool(broker.clear(queue, offsets=[(offset, 1)], reason=reason, who=who))


def reprocess_retries(broker: Broker, queue: str, chosen: MessageFilter, who: str | None) -> int:
    """Send messages that wait for a retry back to the queue at once, with a fresh count of attempts."""
    retries = MessageFilter(
        states=frozenset({State.RETRY}), reason=chosen.reason, since=chosen.since, until=chosen.until
    )
    return broker.reprocess(queue, retries, who=who)


def move_waiting(broker: Broker, source: str, target: str, who: str | None) -> int:
    """Move what waits in a queue to another, also what waits for its time."""
    return broker.move(source, target, who=who)


def next_wake(broker: Broker) -> int:
    """Do what time demands, and give when it next will."""
    assert isinstance(broker, EmbeddedBroker)
    wake: int = broker.runtime.tick()
    return wake
