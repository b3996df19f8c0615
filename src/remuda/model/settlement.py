"""A consumer's answers to its deliveries, and what becomes of a message by them (B12, Q9)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from remuda.model.queues.options import PutBack, QueueOptions
from remuda.model.state import State


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
    awaits: int = 0
    """With RELEASE: wait only until the message has this many notes; at once if it has them. 0: any note from others
    that comes from now on ends the wait."""
    whole: bool = False
    """With `to`: if that queue does not take every message, the answer is refused and nothing changes. Otherwise, those
    that it does not take are parked."""


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a message that was answered, but not acknowledged."""

    state: State
    """RETRY or QUEUED: it goes back to its queue; any other: it ends there."""
    reason: str
    to: str | None = None
    """The queue it moves to, if it ends."""
    delay: int = 0
    front: bool = False
    counts: bool = True
    """Whether the attempt counts."""


def verdict(answer: Settlement, options: QueueOptions, *, last: bool) -> Verdict:
    """What an answer means in a queue; `last` if its delivery limit allows no further attempt."""
    reason, failed, parks_in = answer.reason, answer.reason or "negative answer", options.dead_letter_queue
    counts = answer.counted is not False
    match answer.outcome:
        case Outcome.NACK if options.put_back is PutBack.NO and answer.front is None:
            return Verdict(State.DEAD, failed, parks_in)
        case Outcome.NACK | Outcome.RETRY if last and counts:
            return Verdict(State.DEAD, f"{failed}; delivery limit reached", parks_in)
        case Outcome.NACK:
            delay = options.put_back_delay if answer.delay is None else answer.delay
            front = options.put_back is PutBack.PRIORITY if answer.front is None else answer.front
            return Verdict(State.RETRY, failed, delay=delay, front=front, counts=counts)
        case Outcome.RETRY:
            return Verdict(State.RETRY, failed, delay=answer.delay or 0, front=bool(answer.front), counts=counts)
        case Outcome.RELEASE:
            front, counts = bool(answer.front), bool(answer.counted)
            return Verdict(State.QUEUED, reason or "not now", delay=answer.delay or 0, front=front, counts=counts)
        case Outcome.INVALID:
            return Verdict(State.INVALID, reason or "invalid")
        case Outcome.NOT_INTERESTED:
            return Verdict(State.NOT_INTERESTED, reason or "not interested")
        case Outcome.DEAD:
            return Verdict(State.DEAD, reason or "given up", answer.to or parks_in)
        case Outcome.ACK:
            raise AssertionError("an acknowledgement needs no verdict")
