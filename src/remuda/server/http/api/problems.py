"""Errors over HTTP: problem+json (RFC 9457), with the same texts as everywhere else."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from remuda.model.errors import (
    CommitTimeout,
    Conflict,
    ConsumersFull,
    DeliveryFailed,
    DiskFull,
    Duplicate,
    IllegalMove,
    InvalidMessage,
    InvalidOption,
    MessageTooLarge,
    NotFound,
    QueueFull,
    QueueNotAccepting,
    Refused,
    RemudaError,
    TooManyFiles,
)
from remuda.server.http.reconnecting import Unavailable


class Problem(Exception):
    """An error answer to the client, with its status."""

    def __init__(
        self, status: int, title: str, detail: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.headers = headers or {}
        self.more = more

    def response(self) -> Response:
        body = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail, **self.more}
        return Response(
            msgspec.json.encode(body), self.status, headers=self.headers, media_type="application/problem+json"
        )


_STATUSES: Final[tuple[tuple[type[RemudaError], int, str], ...]] = (
    (InvalidOption, 400, "Invalid value"),
    (InvalidMessage, 400, "Invalid message"),
    (NotFound, 404, "Not found"),
    (MessageTooLarge, 413, "Message too large"),
    (QueueFull, 409, "Queue full"),
    (Duplicate, 409, "Duplicate message"),
    (QueueNotAccepting, 409, "Queue not accepting"),
    (ConsumersFull, 409, "Too many consumers"),
    (Refused, 409, "Refused"),
    (Conflict, 409, "Conflict"),
    (IllegalMove, 409, "Illegal move"),
    (DeliveryFailed, 409, "Delivery failed"),
    (CommitTimeout, 504, "No confirmation in time"),
    (DiskFull, 507, "Disk full"),
    (TooManyFiles, 503, "Too many open files"),
    (Unavailable, 503, "Broker unavailable"),
)


def problem_of(error: RemudaError) -> Problem:
    """The answer for one of Remuda's own errors."""
    for kind, status, title in _STATUSES:
        if isinstance(error, kind):
            headers = {"Retry-After": "2"} if status == 503 else None
            return Problem(status, title, str(error), headers=headers)
    return Problem(500, "Error", str(error))
