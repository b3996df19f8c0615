"""Everything of the broker that the bus uses: imported here, and nowhere else in the bus."""

from __future__ import annotations

from remuda.broker.delivery import AsyncDelivery, BaseDelivery, Delivery
from remuda.broker.delivery import Dispatch
from remuda.broker.embedded.clock import Clock, steady_clock
from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.filters import MessageFilter
from remuda.model.results import ParkedMessage as Parked
from remuda.model.results import QueueInfo
from remuda.model.settlement import Outcome, Settlement

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
    "Settlement",
    "in_hand",
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


def in_hand(runs: list[tuple[int, int]], attempts: list[int]) -> Dispatch:
    """A delivery that another process holds the lease of."""
    return Dispatch("", "", 0, None, runs, attempts, 0)
