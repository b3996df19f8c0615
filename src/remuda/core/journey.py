"""What messages keep when they go from one queue to another, beyond what the events say of them: deadlines,
notes, and what they count as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from remuda.core.queues.ranges import MessageRange
from remuda.core.queues.ready import NEVER


class Journey:
    """The deadlines of the messages that have just left a queue: they go with them (Q5). The event of their arrival is
    the next, in the log too, so that a replay knows them as well."""

    def __init__(self) -> None:
        self.to: str | None = None
        self._left: list[MessageRange] = []
        self.notes: dict[int, bytes] = {}
        """The notes of messages that have left, until they arrive."""
        self.weights: dict[int, int] = {}
        """What they count as, where that is not one."""

    def begin(self, to: str, left: Iterable[MessageRange]) -> None:
        self._left = [piece for piece in left if piece.deadline < NEVER]
        self.to = to if self._left else None

    def arrived(self, piece: MessageRange) -> Iterator[MessageRange]:
        """The parts of a piece that arrives, each with the deadline that it had."""
        at = piece.first
        for left in sorted(self._left, key=lambda one: one.first):
            low, high = max(left.first, at), min(left.end, piece.end)
            if low < high:
                if at < low:
                    yield piece.part(at, low)
                yield msgspec.structs.replace(piece.part(low, high), deadline=left.deadline)
                at = high
        if at < piece.end:
            yield piece.part(at, piece.end)
