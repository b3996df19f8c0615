"""Files of a log vanish when they are sealed or collected: whoever meets that looks again, by a fresh listing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from remuda.model.errors import StorageError

T = TypeVar("T")
_ATTEMPTS: Final = 64


def look_again(look: Callable[[], T], doing: str = "read") -> T:
    """What `look` returns once no file vanished under it; `StorageError` where that never happens."""

    def once() -> Iterator[T]:
        yield look()

    return next(read_on(once, doing))


def read_on(rest: Callable[[], Iterator[T]], doing: str = "read") -> Iterator[T]:
    """Everything that `rest` yields. It is called again where a file vanished, and goes on behind what it yielded."""
    attempts = 0
    while True:
        try:
            for part in rest():
                attempts = 0
                yield part
            return
        except FileNotFoundError as error:
            attempts += 1
            if attempts == _ATTEMPTS:
                raise StorageError(
                    f"files of the log vanish faster than they can be {doing} ({error}); try again. If one of them was "
                    "removed by hand, restore it from a copy"
                ) from error
