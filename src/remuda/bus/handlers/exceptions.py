"""Exceptions by which a handler decides about its message (B12), besides returning or failing."""

from __future__ import annotations

from remuda.model.values.durations import Duration
from remuda.model.values.option_reading import read_duration


class HandlerDecision(Exception):
    """A decision about the message rather than a failure."""


class Retry(HandlerDecision):
    """Retry, now or after a while. Counts as an attempt."""

    def __init__(self, reason: str = "asked for a retry", *, after: Duration = 0) -> None:
        super().__init__(reason)
        self.after = read_duration("after", after)


class Reject(HandlerDecision):
    """The message is invalid and will never be understood (I)."""

    def __init__(self, reason: str = "invalid") -> None:
        super().__init__(reason)


class NotInterested(HandlerDecision):
    """The message is not for this handler (N)."""

    def __init__(self, reason: str = "not interested") -> None:
        super().__init__(reason)


class NotNow(HandlerDecision):
    """Return the message to the queue; the attempt does not count. It comes again after a moment, not at once."""

    def __init__(self, reason: str = "not now", *, after: Duration = "1s") -> None:
        super().__init__(reason)
        self.after = read_duration("after", after)


class Dead(HandlerDecision):
    """The message cannot be handled; it is kept with the reason, and can be reprocessed."""


class Suspended(BaseException):
    """A workflow waits: its message goes back to the queue until then, or until it has this many notes. Like a
    cancellation, it is not caught by `except Exception`."""

    def __init__(self, reason: str, after: int, awaits: int = 0) -> None:
        super().__init__(reason)
        self.after = max(after, 0)
        self.awaits = awaits


class HandlerTimeout(BaseException):
    """Raised in a handler that exceeds its timeout. Like a cancellation, it is not caught by `except Exception`."""


class HandlerCancelled(HandlerTimeout):
    """Raised in a handler whose message was cancelled, in the same way."""
