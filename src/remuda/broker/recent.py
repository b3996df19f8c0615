"""Large batches as they were published, for a consumer that follows close behind. Bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from remuda.model.messages import Messages

_LIMIT: Final = 8 << 20


class Recent:
    """Keeps the newest batches that no queue's window could hold, by their first offset."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._batches: OrderedDict[int, tuple[Messages, float]] = OrderedDict()
        self.bytes = 0.0

    def put(self, first: int, messages: Messages, size: float) -> None:
        self._batches[first] = messages, size
        self.bytes += size
        while self.bytes > self._limit:
            self.bytes -= self._batches.popitem(last=False)[1][1]

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        """The messages of one run that begins where a kept batch does, which are being delivered."""
        if len(runs) != 1 or runs[0][0] not in self._batches:
            return None
        first, count = runs[0]
        messages, size = self._batches[first]
        total = len(messages.bodies)
        if count > total:
            return None
        del self._batches[first]
        self.bytes -= size
        if count < total:
            self.put(first + count, messages.slice(count, total), size * (total - count) / total)
        return messages.slice(0, count)
