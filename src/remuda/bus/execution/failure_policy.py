"""From how a call finished to what becomes of the message: acknowledged, tried again, moved or dead."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from remuda.bus.broker_api import Outcome, Settlement, settlement
from remuda.bus.handlers.call_result import CallResult
from remuda.bus.settings.settings import QueueSettings
from remuda.model.durations import text

_log = logging.getLogger("remuda.bus")

Threshold = Callable[[str, str, str], None]
"""Told the queue, the message's id and the reason."""


class Judgement(msgspec.Struct, frozen=True):
    """A verdict for the broker, and the queue that goes on with the message, if any."""

    settlement: Settlement
    to: str | None = None


class FailurePolicy:
    """Decides by the rules of one queue, and says in one line what happens next when it is not success."""

    def __init__(self, queue: str, settings: QueueSettings, on_threshold: Threshold | None) -> None:
        self._queue = queue
        self._settings = settings
        self._retry = settings.retry
        self._on_threshold = on_threshold

    def judge(self, result: CallResult, message: str, attempt: int, consumer: str) -> Judgement:
        reason, detail = result.reason, result.detail
        if result.outcome not in (Outcome.RETRY, Outcome.NEGATIVE):
            if result.outcome in (Outcome.INVALID, Outcome.NOT_INTERESTED):
                _log.warning(
                    "%s: message %s is %s: %s; it is kept", self._queue, message, result.outcome.value, reason,
                    extra=self._particulars(message, attempt),
                )  # fmt: skip
            return Judgement(Settlement(result.outcome, reason, result.delay or None, consumer, detail=detail))
        self._count(message, attempt, reason)
        asked = result.outcome is Outcome.RETRY
        delay = self._retry.after(attempt)
        if delay is None:
            return self._give_up(result, message, attempt, consumer)
        if asked:
            delay = result.delay
        _log.log(
            logging.INFO if asked else logging.WARNING, "%s: attempt %d of %d of message %s %s: %s; next %s",
            self._queue, attempt, self._retry.max_retries + 1, message, "asks for another" if asked else "failed",
            reason, f"in {text(delay)}" if delay else "now", extra=self._particulars(message, attempt),
        )  # fmt: skip
        return Judgement(settlement(Outcome.RETRY, reason, delay, consumer, detail=detail))

    def _give_up(self, result: CallResult, message: str, attempt: int, consumer: str) -> Judgement:
        target = self._settings.failover
        what_next = f"it goes on in {target}" if target else "it is dead; reprocess it when mended"
        _log.error(
            "%s: attempt %d, the last, of message %s failed: %s; %s",
            self._queue, min(attempt, self._retry.max_retries + 1), message, result.reason, what_next,
            extra=self._particulars(message, attempt),
        )  # fmt: skip
        return Judgement(settlement(Outcome.DEAD, result.reason, consumer=consumer, detail=result.detail), target)

    def _particulars(self, message: str, attempt: int) -> dict[str, object]:
        """For logs that programs read."""
        return {"queue": self._queue, "message_id": message, "attempt": attempt}

    def _count(self, message: str, attempt: int, reason: str | None) -> None:
        """Tell of a message that has failed so often that somebody should know, once."""
        threshold = self._retry.threshold
        # An attempt beyond the last is never made: it tells that the last one was lost together with its worker.
        lost = attempt == self._retry.max_retries + 2
        if self._on_threshold is None or threshold is None or attempt - lost != threshold:
            return
        try:
            self._on_threshold(self._queue, message, reason or "")
        except Exception:
            _log.exception("%s: the threshold callback failed for message %s", self._queue, message)
