"""As `remuda.log.standing.Standing`, which says what everything means."""

from collections.abc import Callable
from typing import Any

class Tail:
    next_offset: int
    next_position: int
    room: int
    _number: int
    _byte: int
    _half: int
    _full: int
    def go_to(self, segment: Any, index: Any, marker: bytes) -> None: ...
    def arm(self, segment: Any, file: Any, handle: int) -> None: ...
    def disarm(self) -> None: ...
    def write_single(self, record: Any) -> int: ...
    def frame_single(self, segment: Any, record: Any) -> bytes | None: ...

def set_up(
    appended: type, events: type, encode_appended: Callable[[Any, int], bytes], encode: Callable[[Any], bytes]
) -> None: ...
