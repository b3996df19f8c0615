"""A command's outcome before it is kept: the result, and what must happen before it may be told."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from remuda.model.messages import Messages


class Pending:
    """`result` counts once everything up to `ticket` is kept and `confirmed`, if any, has come."""

    __slots__ = ("answer", "confirmed", "held", "result", "ticket")

    def __init__(
        self, result: Any, ticket: int, confirmed: Future[None] | None = None, held: Messages | None = None
    ) -> None:
        self.result = result
        self.ticket = ticket
        self.confirmed = confirmed
        self.held = held
        """The messages of a delivery, if they were in memory."""
        self.answer: Future[Any] | None = None
        """Where the result is still on its way from another process: what to wait for before anything else here is
        looked at."""
