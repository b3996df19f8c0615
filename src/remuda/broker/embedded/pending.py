"""A command's result, and what must happen before it counts."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import msgspec

from remuda.model.messages import Messages


class Pending(msgspec.Struct, eq=False):
    """`result` counts once everything up to `ticket` is stored and `confirmed`, if any, is done."""

    result: Any
    ticket: int
    confirmed: Future[None] | None = None
    held: Messages | None = None
    """The messages of a delivery, if they were in memory."""
    answer: Future[Any] | None = None
    """If the result is still on its way from another process: what to wait for before reading anything else here."""
