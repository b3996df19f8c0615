"""How a handler call ended, in a form that can cross a process boundary."""

from __future__ import annotations

import traceback as tracebacks
from types import CodeType, TracebackType
from typing import Final

import msgspec

from remuda.bus.broker_api import Outcome
from remuda.bus.handlers.exceptions import (
    HandlerDecision,
    HandlerTimeout,
    NotInterested,
    NotNow,
    Reject,
    Retry,
    Suspended,
)
from remuda.bus.publishing.bodies import Undecodable
from remuda.bus.publishing.result_messages import Reply
from remuda.bus.settings.retry import RetryPolicy

_REASON_LIMIT: Final = 500
_DETAIL_LIMIT: Final = 8_000
_STACKS_KEPT: Final = 256
_NO_TEXT: Final = "its text is unknown, since its __str__ fails"


class CallResult(msgspec.Struct, frozen=True):
    """`outcome` says how to settle the message; for NACK, a failure, the failure policy decides."""

    outcome: Outcome
    reason: str | None = None
    detail: str | None = None
    delay: int = 0
    replies: tuple[Reply, ...] = ()
    rows: tuple[int, ...] = ()
    """For each reply, the row of the message that it answers."""
    final: bool = False
    """Whether the message must not be retried."""
    error: BaseException | None = None
    """For logs; it does not leave its process."""
    error_type: str = ""
    handled: bool = False
    """Whether the handler succeeded, and only its reply failed."""
    awaits: int = 0
    """With RELEASE: how many notes of its message end the wait before its time."""
    who: str | None = None
    """Who decided so, if it was not the handler."""

    @property
    def traceback(self) -> str | None:
        """The whole traceback of the error; None if only its end was kept."""
        return self.detail if self.detail is not None and len(self.detail) < _DETAIL_LIMIT else None


DONE: Final = CallResult(Outcome.ACK)


def of_error(error: BaseException, retry: RetryPolicy | None = None) -> CallResult:
    """The result of a call that raised."""
    raw = _text_of(error)
    full = storable(_NO_TEXT if raw is None else raw)
    text = full[:_REASON_LIMIT]
    name = type(error).__name__
    if isinstance(error, _DECISIONS):
        return _of_decision(error, text, name)
    error.__traceback__ = _from_handler(error.__traceback__)
    final = retry is not None and not retry.retries(error)
    # If the text cannot be stored, a log file or terminal may not take it either.
    logged = error if raw == full else None
    reason = f"{name}: {text}"
    return CallResult(Outcome.NACK, reason, _traceback(error, full), final=final, error=logged, error_type=name)


_DECISIONS: Final = (HandlerDecision, Undecodable, HandlerTimeout, Suspended)
"""Errors whose text says it all; no traceback is kept."""


def _of_decision(error: BaseException, text: str, name: str) -> CallResult:
    match error:
        case Retry():
            return CallResult(Outcome.RETRY, text, delay=error.after, error_type=name)
        case NotNow():
            return CallResult(Outcome.RELEASE, text, delay=error.after, error_type=name)
        case Suspended():
            return CallResult(Outcome.RELEASE, text, delay=error.after, error_type=name, awaits=error.awaits)
        case Reject():
            return CallResult(Outcome.INVALID, text, error_type=name)
        case NotInterested():
            return CallResult(Outcome.NOT_INTERESTED, text, error_type=name)
        case HandlerDecision():
            return CallResult(Outcome.DEAD, text, error_type=name)
        case Undecodable():
            return CallResult(Outcome.INVALID, f"undecodable: {text}", error_type=name)
        case _:
            return CallResult(Outcome.NACK, text or "timed out", error_type=name)


def unstorable_reply(error: Exception) -> CallResult:
    """The handler succeeded, but its reply cannot be stored. A retry would not change that."""
    name, raw = type(error).__name__, _text_of(error)
    text = storable(_NO_TEXT if raw is None else raw)[:_REASON_LIMIT]
    return CallResult(Outcome.DEAD, f"the reply cannot be stored: {name}: {text}", error_type=name, handled=True)


def _traceback(error: BaseException, text: str) -> str:
    trace = error.__traceback__
    if (
        error.__cause__ is None
        and error.__context__ is None
        and not isinstance(error, BaseExceptionGroup | SyntaxError)
    ):
        lines = _stack(trace)
        if not getattr(error, "__notes__", None):
            name = type(error).__qualname__
            if type(error).__module__ not in ("builtins", "__main__"):
                name = f"{type(error).__module__}.{name}"
            return storable(f"{lines}{name}: {text}\n" if text else f"{lines}{name}\n")[-_DETAIL_LIMIT:]
    return storable("".join(tracebacks.format_exception(type(error), error, trace)))[-_DETAIL_LIMIT:]


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of Remuda that lead to the handler; all of it if it never got there."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("remuda."):
        inner = inner.tb_next
    return inner or trace


_stacks: dict[tuple[tuple[CodeType, int, int], ...], str] = {}


def _stack(trace: TracebackType | None) -> str:
    """A traceback's frames as text, cached, since messages tend to fail at the same place."""
    frames = []
    at = trace
    while at is not None:
        frames.append((at.tb_frame.f_code, at.tb_lineno, at.tb_lasti))
        at = at.tb_next
    key = tuple(frames)
    known = _stacks.get(key)
    if known is None:
        known = "Traceback (most recent call last):\n" + "".join(tracebacks.format_tb(trace))
        if len(_stacks) >= _STACKS_KEPT:
            _stacks.clear()
        _stacks[key] = known
    return known


def _text_of(error: BaseException) -> str | None:
    """The error's text; None if its `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return None


def storable(text: str) -> str:
    """The text with what UTF-8 cannot encode escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
