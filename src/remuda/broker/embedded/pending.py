"""A command's outcome before it is kept: the result, and what must happen before it may be told."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec

from remuda.model.messages import Messages


class Pending(msgspec.Struct, eq=False):
    """`result` counts once everything up to `ticket` is kept and `confirmed`, if any, has come."""

    result: Any
    ticket: int
    confirmed: Future[None] | None = None
    held: Messages | None = None
    """The messages of a delivery, if they were in memory."""
    answer: Future[Any] | None = None
    """Where the result is still on its way from another process: what to wait for before anything else here is looked
    at."""
