"""A consumer's answers to its deliveries (B12, Q9)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How a delivery ended, according to its consumer."""

    ACK = "acknowledge"
    NACK = "negative"
    """Failed: the queue's `put_back` decides."""
    RETRY = "retry"
    """Failed: retry, after a delay of the consumer's choice."""
    RELEASE = "release"
    """Not now: back to the queue, the attempt does not count."""
    INVALID = "invalid"
    NOT_INTERESTED = "not-interested"
    DEAD = "dead"
    """Give up; optionally move to another queue."""

    __hash__ = str.__hash__  # As for states.


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """An outcome with its details."""

    outcome: Outcome
    reason: str | None = None
    delay: int | None = None
    """Before the next attempt, in microseconds; None leaves it to the queue."""
    consumer: str | None = None
    who: str | None = None
    detail: str | None = None
    """More than the reason says, such as a traceback; kept in the log only."""
    to: str | None = None
    """With DEAD: the queue the message moves to."""
    front: bool | None = None
    """Whether it goes back before all others of its priority, or behind them; None leaves it to the queue."""
    counted: bool | None = None
    """Whether the attempt counts; None: a released one does not, all others do."""
