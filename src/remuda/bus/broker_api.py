"""Everything that the bus uses of the broker. The rest of the bus imports it from here only."""

from __future__ import annotations

from typing import Final

from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Delivery, in_hand
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.opening import check_opening, open_broker, waits_for_others
from remuda.broker.options import BrokerKwargs
from remuda.broker.port import Broker, RunLedger
from remuda.broker.threads import EmbeddedBroker
from remuda.broker.waits import Waits
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.results import Health, QueueInfo
from remuda.model.operations.results import ParkedMessage as Parked
from remuda.model.settlement import Outcome, Settlement

CANCELLED: Final = "cancelled"
"""The reason of a message that was cancelled."""

__all__ = [
    "CANCELLED",
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
    "Waits",
    "check_opening",
    "collect_when_due",
    "end_message",
    "in_hand",
    "next_wake",
    "offsets_of",
    "open_broker",
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


def collect_when_due(broker: Broker) -> None:
    """Remove what is past its retention, if the broker's collector is due."""
    assert isinstance(broker, EmbeddedBroker)
    broker.runtime.upkeep.collect_when_due()


def offsets_of(broker: Broker, message_id: str) -> list[int]:
    """The messages with this id, the newest first; raises `NotFound` if there is none. On RabbitMQ, the newest only."""
    newest = broker.message(message_id).offset
    if not isinstance(broker, EmbeddedBroker):
        return [newest]
    found: list[int] = broker.runtime.known(message_id)[1]
    return found


def next_wake(broker: Broker) -> int:
    """Do the work that is due, and return the time at which the next is."""
    assert isinstance(broker, EmbeddedBroker)
    wake: int = broker.runtime.tick()
    return wake
