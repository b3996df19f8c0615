"""Something a guest asked and has not heard of."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from remuda.broker.embedded.pending import Pending

if TYPE_CHECKING:
    from remuda.broker.embedded.inbox import Inbox
    from remuda.model.commands import Command


class Request:
    """A command or a question with its number, under which the answer comes back; `shape` makes the result of it."""

    __slots__ = (
        "again", "command", "expected", "frame", "future", "inbox", "number", "pending", "question", "restores", "sent",
        "shape", "since", "values", "waits",
    )  # fmt: skip

    def __init__(self, number: int, frame: bytes, shape: Callable[[Any], Any]) -> None:
        self.number = number
        self.frame = frame
        self.shape = shape
        self.future: Future[Any] = Future()
        self.pending = Pending(None, 0)
        self.command: Command | None = None
        self.question: str | None = None
        self.values: tuple[Any, ...] = ()
        self.inbox: Inbox | None = None
        self.waits = True
        self.expected = 0
        """Of a settlement: how many messages it should settle."""
        self.sent = False
        self.again = False
        """Whether it was sent to a second host."""
        self.restores = False
        """Whether it brings a host to where the one before was, and is made anew for the next."""
        self.since = time.monotonic()
