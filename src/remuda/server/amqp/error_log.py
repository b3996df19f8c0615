"""Errors that no request should cause: each is one line in the log with a count, and one traceback a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

_log = logging.getLogger("remuda.amqp")
_PAUSE: Final = 60.0


class ErrorLog:
    """Reports mistakes of this server. A client that provokes one again and again does not fill the log."""

    def __init__(self) -> None:
        self.count = 0
        self._told = -_PAUSE

    def report(self, who: str, what: str, error: BaseException, fields: Mapping[str, Any] | None = None) -> None:
        """`fields` are for a log in JSON."""
        self.count += 1
        now = time.monotonic()
        traceback = now - self._told >= _PAUSE
        if traceback:
            self._told = now
        _log.error(
            "%s: %s failed because of a mistake in this server: %s: %s (number %d since the start)%s",
            who, what, type(error).__name__, str(error)[:200], self.count,
            "" if traceback else "; its traceback is left out, as one was logged within the last minute",
            exc_info=error if traceback else None, extra=fields,
        )  # fmt: skip
