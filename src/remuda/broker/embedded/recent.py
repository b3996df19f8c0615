"""The newest messages of the log, still in memory for consumers that follow close behind. Bounded in bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from remuda.log.columns import join_messages
from remuda.model.messages import Messages
from remuda.native import stores

_LIMIT: Final = 8 << 20
_PER_BATCH: Final = 1024
"""About how many bytes of memory a batch takes beside its bodies."""
_PER_MESSAGE: Final = 48
"""The same for each of its messages: a body is an object of its own."""
_DROPPED: Final = 1024


class PlainNewest:
    """What is done for every message: it is added, and the oldest are dropped. In C where that could be built."""

    _limit: int
    _firsts: list[int]
    _batches: list[tuple[Messages, int] | None]
    _head: int
    bytes: int

    def put(self, first: int, messages: Messages, size: int) -> None:
        """Messages were appended from offset `first` on, later than all before them."""
        size += _PER_BATCH + _PER_MESSAGE * len(messages.bodies)
        self._firsts.append(first)
        self._batches.append((messages, size))
        self.bytes += size
        while self.bytes > self._limit:
            self._drop()

    def _drop(self) -> None:
        batch = self._batches[self._head]
        assert batch is not None
        self.bytes -= batch[1]
        self._batches[self._head] = None
        self._head += 1
        if self._head > _DROPPED and 2 * self._head > len(self._firsts):
            self._shorten()

    def _shorten(self) -> None:
        """Remove the empty places of dropped batches."""
        raise NotImplementedError


if TYPE_CHECKING or stores is None:  # noqa: SIM108
    Newest = PlainNewest
else:
    Newest = stores.Newest


class RecentMessages(Newest):
    """Batches by their first offset; the oldest are dropped first."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._firsts = []
        self._batches = []
        self._head = 0
        self.bytes = 0

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        """The messages of these runs; None unless all are here."""
        parts: list[Messages] = []
        for first, count in runs:
            at, stop = bisect_right(self._firsts, first, self._head) - 1, first + count
            while first < stop:
                batch = self._batches[at] if self._head <= at < len(self._batches) else None
                if batch is None:
                    return None
                start, messages = self._firsts[at], batch[0]
                if not start <= first < start + len(messages.bodies):
                    return None
                part = messages.slice(first - start, stop - start)
                parts.append(part)
                first += len(part.bodies)
                at += 1
        return join_messages(parts)

    def _shorten(self) -> None:
        del self._firsts[: self._head], self._batches[: self._head]
        self._head = 0
