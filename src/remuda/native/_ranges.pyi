"""As `remuda.core.ranges.PlainRanges`, which says what everything means."""

from typing import Any

class Ranges:
    _blocks: list[Any]
    _firsts: list[int]
    _shared: frozenset[int]
    _listed: bool
    size: int
    def add(self, piece: Any) -> None: ...
    def take_whole(self, first: int, count: int, lease: int) -> Any: ...

def set_range(range: type) -> None: ...
