"""Interfaces through which the bus uses an outbox, and parts that run beside its workers, such as relays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from remuda.model.messages import Messages

if TYPE_CHECKING:
    from remuda.bus.execution.runner import Runner


class Companion(Protocol):
    """Runs as long as the bus does."""

    role: str
    """What `Bus.health` calls it."""

    @property
    def trouble(self) -> str | None:
        """What keeps it from working at present, if anything does."""
        ...

    def start(self) -> None: ...
    def stop(self, grace: float) -> None: ...
    def is_idle(self) -> bool:
        """Do all work that is due, and return whether there was none."""
        ...

    def pump(self) -> int:
        """Do all work that is due in this thread, and return how much it was."""
        ...


class TransactionalOutbox(Protocol):
    """Keeps messages in the caller's database transaction."""

    def connection(self, given: Any) -> Any:
        """The connection to write through: the given one, or that of the current transaction block; None outside."""
        ...

    def write(self, messages: Messages, connection: Any) -> list[str]: ...
    async def write_async(self, messages: Messages, connection: Any) -> list[str]: ...
    def transaction(self, connection: Any) -> Any: ...
    def deliver(self, messages: Messages, send: Callable[[Messages], list[str]]) -> list[str]:
        """Send outside a transaction, and keep what the broker cannot take at present."""
        ...

    def close(self) -> None: ...


def wait_until_idle(runner: Runner, companions: Sequence[Companion], timeout: float | None) -> bool:
    """Wait until workers and companions have nothing left to do; each may create work for the other."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        were_idle = [companion.is_idle() for companion in companions]
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if not runner.wait_until_idle(left):
            return False
        if all(were_idle):
            return True
        if runner.asked_to_stop or (deadline is not None and time.monotonic() >= deadline):
            return False
