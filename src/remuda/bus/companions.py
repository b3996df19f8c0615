"""What an outbox is to a bus, and what runs beside its workers. The bus knows no more of either."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from remuda.model.messages import Messages

if TYPE_CHECKING:
    from remuda.bus.execution.runner import Runner


class Companion(Protocol):
    """Runs as long as the bus does."""

    @property
    def trouble(self) -> str | None:
        """What keeps it from its work now."""
        ...

    def start(self) -> None: ...
    def stop(self, grace: float) -> None: ...
    def is_idle(self) -> bool:
        """Do what is left to do now; whether there was nothing."""
        ...

    def pump(self) -> int:
        """Do all there is to do now, in this thread. Gives how much it was."""
        ...


class TransactionalOutbox(Protocol):
    """Keeps messages in the caller's database transaction."""

    def connection(self, given: Any) -> Any:
        """The connection to write through, if there is one."""
        ...

    def write(self, messages: Messages, connection: Any) -> list[str]: ...
    async def write_async(self, messages: Messages, connection: Any) -> list[str]: ...
    def transaction(self, connection: Any) -> Any: ...
    def deliver(self, messages: Messages, send: Callable[[Messages], list[str]]) -> list[str]:
        """Send outside of a transaction, with a net below."""
        ...

    def close(self) -> None: ...


def wait_until_idle(runner: Runner, companions: Sequence[Companion], timeout: float | None) -> bool:
    """Until workers and companions have nothing left to do: a companion may bring work, and a worker too."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        had_nothing = [companion.is_idle() for companion in companions]
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if not runner.wait_until_idle(left):
            return False
        if all(had_nothing):
            return True
        if runner.asked_to_stop or (deadline is not None and time.monotonic() >= deadline):
            return False
