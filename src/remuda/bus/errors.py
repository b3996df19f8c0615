"""Errors that the bus raises to callers who ask for a result."""

from __future__ import annotations

from remuda.model.errors import RemudaError


class HandlerFailed(RemudaError):
    """The handler failed for good. The text is that of its error, `error_type` the name of its class, and `detail` the
    traceback.

    The message is kept in `queue`: `bus.status(message_id)` shows its state and how often it was tried.
    """

    def __init__(
        self, reason: str, *, error_type: str = "", detail: str | None = None, queue: str = "", message_id: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error_type = error_type
        self.detail = detail
        self.queue = queue
        self.message_id = message_id

    def __reduce__(self) -> tuple[object, ...]:
        return _failed, (self.reason, self.error_type, self.detail, self.queue, self.message_id)


def _failed(reason: str, error_type: str, detail: str | None, queue: str, message_id: str) -> HandlerFailed:
    return HandlerFailed(reason, error_type=error_type, detail=detail, queue=queue, message_id=message_id)


class ResultNotReady(RemudaError, TimeoutError):
    """No handler has finished this message yet. It is kept and will still be handled."""


class NoResult(RemudaError, LookupError):
    """The message was handled, but its result was not kept; publish it with `keep_result=True`."""
