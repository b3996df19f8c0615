"""What has become of a task's job, as CAF's job service tells it (W8). Answers are cached."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from enum import StrEnum
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from remuda.timed_http import response_until
from remuda.worker.tasks import TaskMessage

_LOG: Final = logging.getLogger("remuda.worker")
_TIMEOUT: Final = 5.0
"""Seconds in which the whole answer must have come."""
_INTERVAL: Final = 120.0
"""Seconds for which an answer holds, where the task says nothing."""
_AFTER_FAILURE: Final = 10.0
_MOST: Final = 10_000
_ANSWER_BYTES: Final = 4096


class JobStatus(StrEnum):
    """What a job service answers."""

    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"

    @property
    def works(self) -> bool:
        return self in (JobStatus.ACTIVE, JobStatus.WAITING)


class _Known(NamedTuple):
    status: JobStatus
    until: float


class Jobs:
    """Asks each job's `statusCheckUrl`. A job that cannot be asked about, or that the service does not know, counts as
    active, as in CAF's own workers: its task is worked on rather than dropped."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._guard = threading.Lock()

    def status(self, task: TaskMessage) -> JobStatus:
        tracking = task.tracking if isinstance(task.tracking, Mapping) else {}
        url = tracking.get("statusCheckUrl")
        if not isinstance(url, str) or not url:
            return JobStatus.ACTIVE
        interval = _interval(tracking)
        if _seconds_since(tracking.get("lastStatusCheckTime")) < interval:
            return JobStatus.ACTIVE  # whoever sent the task has just asked
        now = time.monotonic()
        with self._guard:
            known = self._known.get(url)
        if known is not None and known.until > now:
            return known.status
        try:
            known = _Known(_ask(url), now + interval)
        except Exception as error:
            _LOG.warning("task %s: its job counts as active, since %s cannot be asked: %s", task.task_id, url, error)
            known = _Known(JobStatus.ACTIVE, now + min(interval, _AFTER_FAILURE))
        with self._guard:
            if len(self._known) >= _MOST:
                self._known = {place: one for place, one in self._known.items() if one.until > now}
            if len(self._known) < _MOST:
                self._known[url] = known
        return known.status


def _interval(tracking: Mapping[str, Any]) -> float:
    """Seconds for which an answer holds."""
    given = tracking.get("statusCheckIntervalMillis")
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < 1e12:
        return _INTERVAL
    return given / 1000


def _seconds_since(given: Any) -> float:
    """Since a time in milliseconds; for ever since one that is not known."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return float("inf")
    return max(time.time() - given / 1000, 0.0)


def _ask(url: str) -> JobStatus:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not an http or https URL")
    deadline = time.monotonic() + _TIMEOUT
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    with closing(kind(parts.hostname, parts.port, timeout=_TIMEOUT)) as connection:
        connection.response_class = response_until(deadline)  # type: ignore[assignment]
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        answer = connection.getresponse()
        if not 200 <= answer.status < 300:
            raise ValueError(f"it answers {answer.status} {answer.reason}")
        text = answer.read(_ANSWER_BYTES).decode("utf-8", "replace").strip()
    found = text.splitlines()[0] if text else ""
    try:
        value = json.loads(found)
    except ValueError:
        value = found
    if isinstance(value, bool):  # older services say whether it is active
        return JobStatus.ACTIVE if value else JobStatus.CANCELLED
    return JobStatus(str(value).lower())
