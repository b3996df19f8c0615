"""Something a guest asked and has not heard of."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from time import monotonic
from typing import TYPE_CHECKING, Any

from remuda.broker.embedded.pending import Pending

if TYPE_CHECKING:
    from remuda.broker.embedded.inbox import Inbox
    from remuda.model.commands import Command


class Request:
    """A command or a question with its number, under which the answer comes back; `shape` makes the result of it.

    What is mostly so stands in the class: there is one for every message that a guest publishes.
    """

    future: Future[Any] | None = None
    """For who may not wait: set before it is sent, if at all."""
    gate: threading.Lock | None = None
    """Where the thread that asked waits, if it does not read the answer itself."""
    finished = False
    error: Exception | None = None
    command: Command | None = None
    question: str | None = None
    values: tuple[Any, ...] = ()
    inbox: Inbox | None = None
    waits = True
    awaited = True
    """Whether somebody wants the answer."""
    expected = 0
    """Of a settlement: how many messages it should settle."""
    sent = False
    again = False
    """Whether it was sent to a second host."""
    restores = False
    """Whether it brings a host to where the one before was, and is made anew for the next."""

    def __init__(self, number: int, frame: bytes, shape: Callable[[Any], Any]) -> None:
        self.number = number
        self.frame = frame
        self.shape = shape
        self.pending = Pending(None, 0)
        self.since = monotonic()

    def resolve(self, result: Any) -> None:
        """The answer is here. Only the first one counts."""
        if not self.finished:
            self.pending.result = result
            self.finished = True
            if self.future is not None or self.gate is not None:
                self._tell()

    def fail(self, error: Exception) -> None:
        if not self.finished:
            self.error = error
            self.finished = True
            self._tell()

    def _tell(self) -> None:
        if self.future is not None:
            with contextlib.suppress(InvalidStateError):
                if self.error is None:
                    self.future.set_result(self.pending.result)
                else:
                    self.future.set_exception(self.error)
        if self.gate is not None:
            self.open_gate()

    def new_gate(self) -> threading.Lock:
        """Where to wait. Whoever makes it looks once more whether there is anything to wait for."""
        gate = threading.Lock()
        gate.acquire()
        self.gate = gate
        return gate

    def open_gate(self) -> None:
        """Let the thread that waits go on, or not begin to wait."""
        if self.gate is not None:
            with contextlib.suppress(RuntimeError):  # it is open already
                self.gate.release()
