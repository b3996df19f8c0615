"""How a call of a handler finished, in words that can cross a process boundary."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Final

import msgspec

from remuda.bus.broker_api import Outcome
from remuda.bus.handlers.exceptions import HandlerDecision, HandlerTimeout, NotInterested, NotNow, Reject, Retry
from remuda.bus.publishing.bodies import Undecodable

_REASON_LIMIT: Final = 500
_DETAIL_LIMIT: Final = 8_000


class Reply(msgspec.Struct, frozen=True):
    """The handler's return value on its way to the callback."""

    topic: str
    body: bytes
    mime_type: str
    headers: dict[str, str]


class CallResult(msgspec.Struct, frozen=True):
    """`outcome` says what to tell the queue; NEGATIVE is a failure, for which the retry policy decides."""

    outcome: Outcome
    reason: str | None = None
    detail: str | None = None
    delay: int = 0
    replies: tuple[Reply | None, ...] = ()
    """For each message of the call, if any of them wants one."""


DONE: Final = CallResult(Outcome.ACKNOWLEDGE)


def of_error(error: BaseException) -> CallResult:
    """The outcome of a call that raised."""
    said = _said(error)
    match error:
        case Retry():
            return CallResult(Outcome.RETRY, said, delay=error.after)
        case NotNow():
            return CallResult(Outcome.RELEASE, said, delay=error.after)
        case Reject():
            return CallResult(Outcome.INVALID, said)
        case NotInterested():
            return CallResult(Outcome.NOT_INTERESTED, said)
        case HandlerDecision():
            return CallResult(Outcome.DEAD, said)
        case Undecodable():
            return CallResult(Outcome.INVALID, f"undecodable: {said}")
        case HandlerTimeout():
            return CallResult(Outcome.NEGATIVE, said or "timed out")
    detail = _storable("".join(traceback.format_exception(type(error), error, _of_handler(error.__traceback__))))
    return CallResult(Outcome.NEGATIVE, f"{type(error).__name__}: {said}", detail[-_DETAIL_LIMIT:])


def _of_handler(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the handler on, without the way to it; all of it where it never got there."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("remuda."):
        inner = inner.tb_next
    return inner or trace


def _said(error: BaseException) -> str:
    try:
        return _storable(str(error))[:_REASON_LIMIT]
    except Exception:
        return "it cannot be told what, since its __str__ fails"


def _storable(text: str) -> str:
    """The text without what UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
