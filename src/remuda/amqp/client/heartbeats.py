"""When a heartbeat is due, and when the other end has been silent for too long."""

from __future__ import annotations

import time
from typing import Final

IDLE: Final = 3600.0


class Heartbeats:
    """Both ends send something at least every `interval` seconds; 0 turns heartbeats off."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self.sent_at = self.heard_at = time.monotonic()

    def sent(self) -> None:
        self.sent_at = time.monotonic()

    def heard(self) -> None:
        self.heard_at = time.monotonic()

    def silence(self) -> float:
        """Seconds since anything was received."""
        return time.monotonic() - self.heard_at

    def until_next(self, reading: bool) -> float:
        """Seconds until a heartbeat is due or the other end is considered silent."""
        if not self._interval:
            return IDLE
        due = self.sent_at + self._interval / 2
        if reading:
            due = min(due, self.heard_at + 2 * self._interval)
        return due - time.monotonic()

    def is_silent(self, reading: bool) -> bool:
        """Whether the other end sent nothing for two intervals. While the connection does not read, that cannot be
        known, so the silence starts anew."""
        if not reading:
            self.heard()
        return bool(self._interval) and self.silence() >= 2 * self._interval

    def is_due(self) -> bool:
        return bool(self._interval) and time.monotonic() - self.sent_at >= self._interval / 2
