"""Sending messages from the relay to the bus's broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.model.errors import InvalidMessage, PartlyRefused, Refused
from remuda.model.messages import Messages
from remuda.model.queues.system_queues import UNROUTED

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


def send(bus: Bus, messages: Messages) -> dict[int, str]:
    """Send messages to the broker. Returns the reason for each row that it refuses; raises if the broker fails."""
    try:
        receipt = bus.broker.publish(messages, unbound=UNROUTED, raise_refusals=False)
    except PartlyRefused as error:
        return {row: _reason(one) for row, one in error.receipt.refusals.items()}  # type: ignore[attr-defined]
    except (Refused, InvalidMessage) as error:
        if len(messages) == 1:
            return {0: _reason(error)}
        # One bad message fails the whole batch, so send each by itself: only those refused are held back.
        refused = {}
        for row in range(len(messages)):
            if reasons := send(bus, messages.slice(row, row + 1)):
                refused[row] = reasons[0]
        return refused
    return {row: _reason(one) for row, one in receipt.refusals.items()}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]
