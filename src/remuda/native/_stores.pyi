"""As `PlainBatches` in `remuda.broker.embedded.window`, `PlainNewest` in `recent`, and `steady_clock` in `clock`."""

from collections import deque
from typing import Any

class Batches:
    _limit: int
    size: int
    _batches: deque[Any]
    def put(self, first: int, messages: Any) -> None: ...
    def take(self, runs: Any) -> Any: ...

class Newest:
    _limit: int
    bytes: int
    _head: int
    _firsts: list[int]
    _batches: list[Any]
    def put(self, first: int, messages: Any, size: int) -> None: ...

class Clock:
    def __new__(cls, clock: int, offset: int) -> Clock: ...
    def __call__(self) -> int: ...

def set_messages(messages: type, deque: type) -> None: ...
