"""As `remuda.core.lanes.PlainLane` and `PlainLanes`, which say what everything means."""

from typing import Any

class Lane:
    size: int
    soonest: int
    _first: int
    _count: int
    _deadline: int
    def append(self, first: int, count: int, deadline: int = ...) -> None: ...
    def take_first(self, count: int) -> tuple[int, int, int]: ...

class Lanes:
    size: int
    soonest: int
    _order: list[tuple[int, bool, Any]]
    def add(self, priority: int, front: bool, first: int, count: int, deadline: int = ...) -> None: ...
    def take_run(self, count: int, now: int) -> tuple[int, int, int, int] | None: ...
