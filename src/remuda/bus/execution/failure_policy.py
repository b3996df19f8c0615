"""Decides by a call's result what becomes of the message: acknowledged, retried, moved to a failover queue, or dead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from remuda.bus.broker_api import Clock, Outcome, Settlement, settlement
from remuda.bus.handlers.exceptions import Dead
from remuda.bus.handlers.result import CallResult
from remuda.bus.observing.logs import log_error
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.result_messages import Reply
from remuda.bus.settings.settings import QueueSettings
from remuda.model.queues.end_reports import report_topic
from remuda.model.values.durations import text

_log = logging.getLogger("remuda.bus")
_text = lru_cache(256)(text)

Threshold = Callable[[str, str, str], None]
"""Called with the queue, the message's id and the reason."""

_KEPT: Final = (Outcome.INVALID, Outcome.NOT_INTERESTED, Outcome.DEAD)

Fate = tuple[Settlement, str | None]
"""How a message is settled, and the failover queue that it is to move to, if any."""


class FailurePolicy:
    """Decides by the settings of one queue, and logs failures and messages that are kept."""

    def __init__(self, queue: str, settings: QueueSettings, on_threshold: Threshold | None, clock: Clock) -> None:
        self._queue = queue
        self._settings = settings
        self._retry = settings.retry
        self._on_threshold = on_threshold
        self._clock = clock
        self._then = "; the next of its key goes on" if dict(settings.rules).get("ordered") else ""

    def decide(self, result: CallResult, message_id: str, attempt: int, consumer: str) -> Fate:
        reason, detail = result.reason, result.detail
        if result.outcome not in (Outcome.RETRY, Outcome.NACK):
            if result.outcome in _KEPT and result.error_type != Dead.__name__:
                _log.warning(
                    "%s: message %s is %s: %s; it is kept%s",
                    self._queue, message_id, result.outcome.value, reason, self._then,
                    extra=self._fields(message_id, attempt),
                )  # fmt: skip
            settled = settlement(result.outcome, reason, result.delay or None, consumer, detail)
            if result.awaits or result.who:
                settled = msgspec.structs.replace(settled, awaits=result.awaits, who=result.who)
            return settled, None
        self._check_threshold(message_id, attempt, reason)
        delay = None if result.final else self._retry.after(attempt)
        if delay is None:
            return self._give_up(result, message_id, attempt, consumer)
        requested = result.outcome is Outcome.RETRY
        if requested:
            delay = result.delay
        level = logging.INFO if requested else logging.WARNING
        if _log.isEnabledFor(level):
            log_error(
                _log, level, "%s: attempt %d of %d of message %s %s: %s; next attempt %s",
                self._queue, attempt, self._retry.max_retries + 1, message_id,
                "asked for a retry" if requested else "failed", reason, f"in {_text(delay)}" if delay else "now",
                error=result.error, traceback=result.traceback, extra=self._fields(message_id, attempt),
            )  # fmt: skip
        return settlement(Outcome.RETRY, reason, delay, consumer, detail), None

    def ends(self, result: CallResult, attempt: int) -> bool:
        """Whether a message ends without success by this result of its handler."""
        if result.outcome in _KEPT:
            return not result.handled
        return result.outcome is Outcome.NACK and (result.final or self._retry.after(attempt) is None)

    def failure_reply(self, headers: Mapping[str, str], result: CallResult, fate: Fate) -> Reply | None:
        """The reply that reports a failure, if the headers ask for one: once the message has failed for good, and to a
        `call` also when the next attempt would come after its deadline."""
        callback = headers.get(names.CALLBACK)
        called = callback is not None and callback.startswith(names.REPLY_TOPIC)
        target = report_topic(headers)
        if target is None or result.outcome in (Outcome.ACK, Outcome.RELEASE):
            return None
        settled, _ = fate
        if settled.outcome is Outcome.RETRY:
            next_attempt = self._clock() + (settled.delay or 0)
            if not called or next_attempt < _deadline(headers.get(names.CALL_DEADLINE)):
                return None
        error_headers = {
            names.EXCEPTION: result.reason or "failed",
            names.ERROR_TYPE: result.error_type or "Exception",
            names.GROUP: self._queue,
        }
        return Reply(target, (result.detail or "").encode(), "text/plain", error_headers)

    def _give_up(self, result: CallResult, message_id: str, attempt: int, consumer: str) -> Fate:
        target = self._settings.failover
        last = min(attempt, self._retry.max_retries + 1)
        if _log.isEnabledFor(logging.ERROR):
            log_error(
                _log, logging.ERROR, "%s: attempt %d, the last, of message %s failed: %s; %s",
                self._queue, last, message_id, result.reason,
                f"it moves to {target}" if target else "it is dead: fix the cause, then reprocess it" + self._then,
                error=result.error, traceback=result.traceback, extra=self._fields(message_id, attempt),
            )  # fmt: skip
        return settlement(Outcome.DEAD, result.reason, consumer=consumer, detail=result.detail), target

    def stays(self, result: CallResult, message_id: str, fate: Fate, why: str) -> Fate:
        """What becomes of a message that its failover queue does not take: it is dead here."""
        settled, target = fate
        _log.error(
            "%s: message %s did not move to %s: %s; it is dead: fix the cause, then reprocess it%s",
            self._queue, message_id, target, why, self._then, extra={"queue": self._queue, "message_id": message_id},
        )  # fmt: skip
        return msgspec.structs.replace(settled, reason=f"{result.reason}; not moved to {target}: {why}"), None

    def _fields(self, message_id: str, attempt: int) -> dict[str, Any]:
        """For logs that programs read."""
        return {"queue": self._queue, "message_id": message_id, "attempt": attempt}

    def _check_threshold(self, message_id: str, attempt: int, reason: str | None) -> None:
        """Call the threshold callback if this attempt is the one that reaches the threshold."""
        threshold = self._retry.threshold
        # An attempt beyond the last is never made: this number means that the last was lost together with its worker.
        lost = attempt == self._retry.max_retries + 2
        if self._on_threshold is None or threshold is None or attempt - lost != threshold:
            return
        try:
            self._on_threshold(self._queue, message_id, reason or "")
        except Exception:
            _log.exception("%s: the threshold callback failed for message %s", self._queue, message_id)


def _deadline(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
