"""The newest messages of the log, still in memory for consumers that follow close behind. Bounded in bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from remuda.log.tail.regroup import join_messages
from remuda.model.messages import Messages

_LIMIT: Final = 8 << 20
_PER_BATCH: Final = 1024
"""About how many bytes of memory a batch takes beside its messages."""
_DROPPED: Final = 1024


class TailCache:
    """Batches by their first offset; the oldest are dropped first."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._firsts: list[int] = []
        self._batches: list[tuple[Messages, int] | None] = []
        self._head = 0
        self.bytes = 0

    def put(self, first: int, messages: Messages) -> None:
        """Messages were appended from offset `first` on, later than all before them."""
        size = _PER_BATCH + messages.memory()
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
            # Remove the empty places of dropped batches.
            del self._firsts[: self._head], self._batches[: self._head]
            self._head = 0

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
