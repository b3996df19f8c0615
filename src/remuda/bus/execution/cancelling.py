"""What becomes of messages that are cancelled while they are handled (B20), and of those beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remuda.bus.broker_api import CANCELLED, Outcome
from remuda.bus.handlers.exceptions import HandlerCancelled
from remuda.bus.handlers.result import CallResult

_INTERRUPT: Final = HandlerCancelled.__name__
_BESIDE: Final = CallResult(Outcome.RELEASE, "a message beside it was cancelled")

INTERRUPTED: Final = CallResult(Outcome.NACK, "interrupted", error_type=_INTERRUPT)
"""The result of a call that was interrupted, whatever its handler made of that."""


def cancelled_by(who: str) -> CallResult:
    """The result of a message that was cancelled while it was handled."""
    return CallResult(Outcome.DEAD, CANCELLED, final=True, error_type="Cancelled", who=who or None)


def charged(
    cancelled: Mapping[int, CallResult], rows: list[int], result: CallResult
) -> list[tuple[list[int], CallResult]]:
    """The result of a call for each of its rows. One that succeeded before it could be cancelled has succeeded; rows
    that were interrupted for another's sake go back, and the attempt does not count."""
    if result.outcome is Outcome.ACK:
        return [(rows, result)]
    hit = [row for row in rows if row in cancelled]
    if not hit:
        return [(rows, _BESIDE if result.error_type == _INTERRUPT else result)]
    others = [row for row in rows if row not in cancelled]
    return [*(([row], cancelled[row]) for row in hit), *([(others, _BESIDE)] if others else [])]
