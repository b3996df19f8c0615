"""A queue as seen from outside."""

from __future__ import annotations

import msgspec

from remuda.core.queue import Queue
from remuda.model.options import QueueOptions, Status
from remuda.model.state import State


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue's options, status and numbers at one moment."""

    name: str
    status: Status
    options: QueueOptions
    high: int
    normal: int
    delayed: int
    in_flight: int
    dead: int
    invalid: int
    not_interested: int
    consumers: tuple[str, ...]
    counts: dict[State, int]
    """How many messages ever entered each state here."""
    pulls: int = 0
    """Pull requests that wait for a message."""
    late_answers: int = 0
    """Answers since the start that came too late or for the second time, and were ignored."""

    @property
    def waiting(self) -> int:
        return self.high + self.normal

    @property
    def size(self) -> int:
        """Everything not settled."""
        return self.waiting + self.delayed + self.in_flight


def describe(queue: Queue) -> QueueInfo:
    parked = {State.DEAD: 0, State.INVALID: 0, State.NOT_INTERESTED: 0}
    for piece in queue.parked:
        parked[piece.state] += piece.count
    return QueueInfo(
        name=queue.name,
        status=queue.status,
        options=queue.options,
        high=queue.high.size,
        normal=queue.normal.size + queue.returned.size,
        delayed=queue.delayed.size,
        in_flight=queue.flights.size,
        dead=parked[State.DEAD],
        invalid=parked[State.INVALID],
        not_interested=parked[State.NOT_INTERESTED],
        consumers=tuple(queue.consumers),
        counts=dict(queue.counts),
        pulls=len(queue.waiters),
        late_answers=queue.late_answers,
    )
