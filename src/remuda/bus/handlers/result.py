"""How a call of a handler ended, in terms that can cross a process boundary."""

from __future__ import annotations

import traceback as tracebacks
from types import CodeType, TracebackType
from typing import Final

import msgspec

from remuda.bus.broker_api import Outcome
from remuda.bus.handlers.exceptions import HandlerDecision, HandlerTimeout, NotInterested, NotNow, Reject, Retry
from remuda.bus.publishing.bodies import Undecodable
from remuda.bus.publishing.reply import Reply
from remuda.bus.settings.retry import RetryPolicy

_REASON_LIMIT: Final = 500
_DETAIL_LIMIT: Final = 8_000
_STACKS_KEPT: Final = 256
_SPEECHLESS: Final = "its text is unknown, since its __str__ fails"


class CallResult(msgspec.Struct, frozen=True):
    """`outcome` says what to tell the queue; NEGATIVE is a failure, for which the failure policy decides."""

    outcome: Outcome
    reason: str | None = None
    detail: str | None = None
    delay: int = 0
    replies: tuple[Reply, ...] = ()
    rows: tuple[int, ...] = ()
    """For each reply, the number of the message of the call that it answers."""
    final: bool = False
    """Whether another attempt would be in vain."""
    error: BaseException | None = None
    """For logs; it does not leave its process."""
    error_type: str = ""

    @property
    def traceback(self) -> str | None:
        """The whole traceback of the error; None where only its end was kept."""
        return self.detail if self.detail is not None and len(self.detail) < _DETAIL_LIMIT else None


DONE: Final = CallResult(Outcome.ACK)


def of_error(error: BaseException, retry: RetryPolicy | None = None) -> CallResult:
    """The result of a call that raised."""
    said = _said(error)
    full = storable(_SPEECHLESS if said is None else said)
    text = full[:_REASON_LIMIT]
    name = type(error).__name__
    if isinstance(error, _TOLD):
        return _told(error, text, name)
    error.__traceback__ = _from_handler(error.__traceback__)
    final = retry is not None and not retry.retries(error)
    # A log may be a file or a terminal that cannot hold such a text either.
    logged = error if said == full else None
    reason = f"{name}: {text}"
    return CallResult(Outcome.NACK, reason, _traceback(error, full), final=final, error=logged, error_type=name)


_TOLD: Final = (HandlerDecision, Undecodable, HandlerTimeout)
"""Errors that say all there is to say: nobody needs to know where they were raised."""


def _told(error: BaseException, text: str, name: str) -> CallResult:
    match error:
        case Retry():
            return CallResult(Outcome.RETRY, text, delay=error.after, error_type=name)
        case NotNow():
            return CallResult(Outcome.RELEASE, text, delay=error.after, error_type=name)
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
    """The handler ended well, but what it wants to send cannot be stored: running it again would not change that."""
    name, said = type(error).__name__, _said(error)
    text = storable(_SPEECHLESS if said is None else said)[:_REASON_LIMIT]
    return CallResult(Outcome.DEAD, f"the reply cannot be stored: {name}: {text}", error_type=name)


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
    """The traceback from the handler on, without the way to it; all of it where it never got there."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("remuda."):
        inner = inner.tb_next
    return inner or trace


_stacks: dict[tuple[tuple[CodeType, int, int], ...], str] = {}


def _stack(trace: TracebackType | None) -> str:
    """A traceback's frames as text. Messages tend to fail at the same place, so it is made once for each."""
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


def _said(error: BaseException) -> str | None:
    """Its text; None where a log handler that asks for it would get none."""
    try:
        return str(error)
    except Exception:
        return None


def storable(text: str) -> str:
    """The text without what UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
