"""How a call of a handler ended, in words that can cross a process boundary."""

from __future__ import annotations

import traceback
from typing import Final

import msgspec

from remuda.bus.answers import HandlerAnswer, HandlerTimeout, NotInterested, NotNow, Reject, Retry
from remuda.bus.bodies import Undecodable
from remuda.core.effects import Answer
from remuda.model.durations import micros

_DETAIL_LIMIT: Final = 8_000


class Reply(msgspec.Struct, frozen=True):
    """The handler's return value on its way to the callback."""

    topic: str
    body: bytes
    mime_type: str
    headers: dict[str, str]


class Outcome(msgspec.Struct, frozen=True):
    """`answer` says what to tell the queue; NEGATIVE is a failure, for which the retry policy decides."""

    answer: Answer
    reason: str | None = None
    detail: str | None = None
    delay: int = 0
    reply: Reply | None = None


DONE: Final = Outcome(Answer.ACKNOWLEDGE)


def of_error(error: BaseException) -> Outcome:
    """The outcome of a call that raised."""
    match error:
        case Retry():
            return Outcome(Answer.RETRY, str(error), delay=micros(error.after))
        case NotNow():
            return Outcome(Answer.RELEASE, str(error), delay=micros(error.after))
        case Reject():
            return Outcome(Answer.INVALID, str(error))
        case NotInterested():
            return Outcome(Answer.NOT_INTERESTED, str(error))
        case HandlerAnswer():
            return Outcome(Answer.NEGATIVE, str(error))
        case Undecodable():
            return Outcome(Answer.INVALID, f"undecodable: {error}")
        case HandlerTimeout():
            return Outcome(Answer.NEGATIVE, str(error) or "timed out")
    detail = "".join(traceback.format_exception(error))
    return Outcome(Answer.NEGATIVE, f"{type(error).__name__}: {error}"[:500], detail[-_DETAIL_LIMIT:])
