"""As `remuda.core.air.PlainAir`, which says what everything means."""

from collections.abc import Callable
from typing import Any

class Air:
    flights: Any
    leases: Any
    _lease_ends: Any
    def lift(
        self, first: int, count: int, expires: int, priority: int, token: int, consumer: str, now: int, deadline: int
    ) -> list[tuple[int, int]]: ...
    def land(self, token: int, consumer: str | None, runs: list[tuple[int, int]] | None) -> Any: ...

def set_up(lease: type, range: type, fetched: Any, heappush: Callable[[Any, Any], None]) -> None: ...
