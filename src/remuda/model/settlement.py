"""What a consumer says of the messages it was given (B12, Q9)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How a delivery ended, in its consumer's words."""

    ACK = "acknowledge"
    NACK = "negative"
    """Failed: the queue's `put_back` decides."""
    RETRY = "retry"
    """Failed: again, after a delay of the consumer's choice."""
    RELEASE = "release"
    """Not now: back to the queue, the attempt does not count."""
    INVALID = "invalid"
    NOT_INTERESTED = "not-interested"
    DEAD = "dead"
    """Give up; optionally on to another queue."""

    __hash__ = str.__hash__  # As for states.


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """An outcome with all that goes with it."""

    outcome: Outcome
    reason: str | None = None
    delay: int | None = None
    """Before the next attempt, in microseconds; None leaves it to the queue."""
    consumer: str | None = None
    who: str | None = None
    detail: str | None = None
    """More than the reason says, such as a traceback; kept in the log only."""
    to: str | None = None
    """With DEAD: the queue in which the message goes on."""
    front: bool | None = None
    """Back before all others of its priority, or behind them; None leaves it to the queue."""
    counted: bool | None = None
    """Whether the attempt counts; None: a released one does not, all others do."""
