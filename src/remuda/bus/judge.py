"""From how a call ended to what becomes of the message: acknowledged, tried again, moved or dead."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from remuda.bus.outcome import Outcome
from remuda.bus.settings import QueueSettings
from remuda.core.effects import Answer
from remuda.core.settling import Verdict
from remuda.model.durations import text

_log = logging.getLogger("remuda.bus")


class Judgement(msgspec.Struct, frozen=True):
    """A verdict for the broker, and the queue that goes on with the message, if any."""

    verdict: Verdict
    to: str | None = None


def judge(
    outcome: Outcome,
    settings: QueueSettings,
    queue: str,
    message: str,
    attempt: int,
    consumer: str,
    on_threshold: Callable[[str, str, str], None] | None,
) -> Judgement:
    """Decide, and say in one line what happens next when it is not success."""
    reason, detail = outcome.reason, outcome.detail
    if outcome.answer is Answer.RETRY:
        if attempt > settings.retry.max_retries:
            return _give_up(settings, queue, message, attempt, consumer, reason, detail, on_threshold)
        _log.info("%s: message %s asks to be tried again after %s", queue, message, text(outcome.delay))
        return Judgement(Verdict(Answer.RETRY, reason, outcome.delay, consumer, detail=detail))
    if outcome.answer is not Answer.NEGATIVE:
        if outcome.answer in (Answer.INVALID, Answer.NOT_INTERESTED):
            _log.warning("%s: message %s is %s: %s; it is kept", queue, message, outcome.answer.value, reason)
        return Judgement(Verdict(outcome.answer, reason, outcome.delay or None, consumer, detail=detail))
    delay = settings.retry.after(attempt)
    if delay is None:
        return _give_up(settings, queue, message, attempt, consumer, reason, detail, on_threshold)
    _log.warning(
        "%s: attempt %d of %d of message %s failed: %s; next in %s",
        queue, attempt, settings.retry.max_retries + 1, message, reason, text(delay),
    )  # fmt: skip
    return Judgement(Verdict(Answer.RETRY, reason, delay, consumer, detail=detail))


def _give_up(
    settings: QueueSettings,
    queue: str,
    message: str,
    attempt: int,
    consumer: str,
    reason: str | None,
    detail: str | None,
    on_threshold: Callable[[str, str, str], None] | None,
) -> Judgement:
    what_next = f"it goes on in {settings.failover}" if settings.failover else "it is dead; reprocess it when mended"
    _log.error("%s: attempt %d, the last, of message %s failed: %s; %s", queue, attempt, message, reason, what_next)
    if settings.retry.threshold is not None and on_threshold is not None:
        try:
            on_threshold(queue, message, reason or "")
        except Exception:
            _log.exception("%s: the threshold callback failed for message %s", queue, message)
    verdict = Verdict(Answer.DEAD, reason, consumer=consumer, detail=detail)
    return Judgement(verdict, settings.failover)
