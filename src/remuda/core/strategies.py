"""How messages find consumers (Q1, Q2): push, round-robin, pull."""

from __future__ import annotations

from remuda.core.extensions import Assignment, Line, Strategy
from remuda.model.options import Acknowledge, QueueOptions, QueueType


class Push:
    """Every online consumer gets each message. While answers are awaited, one delivery at a time."""

    def next(self, line: Line) -> Assignment | None:
        members = line.members
        if not members:
            return None
        waits = line.options.acknowledge is Acknowledge.WAIT
        if waits and line.unanswered:
            return None
        # Confirmations are counted per delivery, so a message that needs several travels alone.
        alone = line.options.confirmations != 1
        count = 1 if alone else min(member.batch for member in members)
        return Assignment(tuple(member.name for member in members), count)


class RoundRobin:
    """One consumer gets each message: of those who can take one, who was served longest ago, then who came first."""

    def next(self, line: Line) -> Assignment | None:
        waits = line.options.acknowledge is Acknowledge.WAIT
        free = [member for member in line.members if not (waits and member.unanswered)]
        if not free:
            return None
        chosen = min(free, key=lambda member: (member.served, member.joined))
        return Assignment((chosen.name,), chosen.batch)


class Pull:
    """Nobody gets anything without asking."""

    def next(self, line: Line) -> Assignment | None:
        return None


_BY_TYPE: dict[QueueType, Strategy] = {
    QueueType.PUSH: Push(),
    QueueType.ROUND_ROBIN: RoundRobin(),
    QueueType.PULL: Pull(),
}


def by_type(queue: str, options: QueueOptions) -> Strategy:
    """The strategy of a queue that names none of its own."""
    return _BY_TYPE[options.type]
