"""A guest's request that has no answer yet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from time import monotonic
from typing import TYPE_CHECKING, Any

from remuda.broker.embedded.pending import Pending

if TYPE_CHECKING:
    from remuda.broker.embedded.delivering.inbox import Inbox
    from remuda.model.operations.commands import Command


class Request:
    """A command or query with its number, which the answer repeats; `shape` makes the result of the answer.

    Defaults are class attributes, since there is a request for every message that a guest publishes.
    """

    future: Future[Any] | None = None
    """For callers that do not wait; set before the request is sent."""
    gate: threading.Lock | None = None
    """What the calling thread waits for, if it does not read the answer itself."""
    finished = False
    error: Exception | None = None
    command: Command | None = None
    query: str | None = None
    values: tuple[Any, ...] = ()
    inbox: Inbox | None = None
    waits = True
    awaited = True
    """Whether a caller waits for the answer."""
    expected = 0
    """For a `Settle`: how many messages it should settle."""
    sent = False
    again = False
    """Whether it was sent to a second host."""
    restores = False
    """Whether it restores at a new host what the last one had; it is made again for each host."""

    def __init__(self, number: int, frame: bytes, shape: Callable[[Any], Any]) -> None:
        self.number = number
        self.frame = frame
        self.shape = shape
        self.pending = Pending(None, 0)
        self.since = monotonic()

    def resolve(self, result: Any) -> None:
        """Finish with a result. Only the first one counts."""
        if not self.finished:
            self.pending.result = result
            self.finished = True
            if self.future is not None or self.gate is not None:
                self._wake()

    def fail(self, error: Exception) -> None:
        if not self.finished:
            self.error = error
            self.finished = True
            self._wake()

    def _wake(self) -> None:
        if self.future is not None:
            with contextlib.suppress(InvalidStateError):
                if self.error is None:
                    self.future.set_result(self.pending.result)
                else:
                    self.future.set_exception(self.error)
        if self.gate is not None:
            self.open_gate()

    def new_gate(self) -> threading.Lock:
        """A lock to wait for. The caller must check once more whether the request is finished before it waits."""
        gate = threading.Lock()
        gate.acquire()
        self.gate = gate
        return gate

    def open_gate(self) -> None:
        """Wake the thread that waits, or keep it from waiting."""
        if self.gate is not None:
            with contextlib.suppress(RuntimeError):  # already open
                self.gate.release()
