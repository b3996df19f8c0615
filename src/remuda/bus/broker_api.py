"""Everything that the bus uses of the broker. The rest of the bus imports it from here only."""

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
    """A decision about delivered messages; without a delay, the queue's own options decide when a retry comes."""
    return Settlement(outcome, reason, delay, consumer, detail=detail)


def end_message(broker: Broker, queue: str, offset: int, reason: str, who: str | None) -> bool:
    """End one message that is waiting or delayed; False if it is in flight or has ended."""
    return bool(broker.clear(queue, offsets=[(offset, 1)], reason=reason, who=who))


def reprocess_retries(broker: Broker, queue: str, chosen: MessageFilter, who: str | None) -> int:
    """Send messages that wait for a retry back to the queue at once, with a fresh count of attempts."""
    retries = MessageFilter(
        states=frozenset({State.RETRY}), reason=chosen.reason, since=chosen.since, until=chosen.until
    )
    return broker.reprocess(queue, retries, who=who)


def move_waiting(broker: Broker, source: str, target: str, who: str | None) -> int:
    """Move the waiting and delayed messages of a queue to another."""
    return broker.move(source, target, who=who)


def next_wake(broker: Broker) -> int:
    """Do the work that is due, and return the time at which the next is."""
    assert isinstance(broker, EmbeddedBroker)
    wake: int = broker.runtime.tick()
    return wake
