"""As `remuda.core.in_flight.PlainInFlight`, which says what everything means."""

from collections.abc import Callable
from typing import Any

class InFlight:
    flights: Any
    leases: Any
    _lease_ends: Any
    def send(
        self,
        name: str,
        run: tuple[int, int, int, int],
        token: int,
        consumer: str,
        tag: int,
        now: int,
        deadline: int,
        remaining: tuple[int, int],
    ) -> Any: ...
    def complete(
        self, name: str, token: int, consumer: str | None, runs: list[tuple[int, int]] | None, at: int, now: int
    ) -> Any: ...
    def land(self, token: int, consumer: str | None, runs: list[tuple[int, int]] | None) -> Any: ...

def set_up(
    lease: type,
    range: type,
    dispatch: type,
    event: type,
    events: type,
    states: tuple[Any, Any, Any],
    heappush: Callable[[Any, Any], None],
) -> None: ...
