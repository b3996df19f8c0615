"""Everything of the broker that the bus uses: imported here, and nowhere else in the bus."""

from __future__ import annotations

from remuda.broker.clock import Clock, steady_clock
from remuda.broker.delivery import Answers as BaseDelivery
from remuda.broker.delivery import AsyncDelivery, Delivery
from remuda.broker.embedded import EmbeddedBroker
from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.core.effects import Answer as Outcome
from remuda.core.effects import Sending
from remuda.core.info import QueueInfo
from remuda.core.operators import Parked
from remuda.core.operators import Selection as MessageFilter
from remuda.core.settling import Verdict as Settlement

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
    "open_broker",
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
