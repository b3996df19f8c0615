"""Delivery strategies (Q1, Q2): push to all consumers, round-robin, or one active consumer."""

from __future__ import annotations

import logging

from remuda.core.extensions import Assignment, QueueView, Strategy, StrategyFor
from remuda.core.queues.credit import WINDOW
from remuda.model.queues.options import Acknowledge, QueueOptions, QueueType

_log = logging.getLogger("remuda.extensions")


class Push:
    """Every online consumer gets each message. While answers are awaited, one delivery at a time."""

    def next(self, queue: QueueView) -> Assignment | None:
        members = queue.members
        if not members:
            return None
        if queue.options.acknowledge is Acknowledge.WAIT:
            if queue.unanswered:
                return None
            window = min(member.batch for member in members)
        else:
            window = min(min(member.batch, WINDOW - member.under_way) for member in members)
            if window <= 0:
                return None
        # Confirmations are counted per delivery, so a message that needs several travels alone.
        alone = queue.options.confirmations != 1
        return Assignment(tuple(member.name for member in members), 1 if alone else window)


class RoundRobin:
    """One consumer gets each message: of those that can take one, the one served longest ago, then the one that came
    first."""

    def next(self, queue: QueueView) -> Assignment | None:
        chosen = queue.next_ready()
        if chosen is None:
            return None
        waits = queue.options.acknowledge is Acknowledge.WAIT
        left = chosen.credit.left if waits else WINDOW - chosen.under_way
        return Assignment((chosen.name,), min(chosen.batch, left))


class SingleActive:
    """The consumer that came first gets all messages; the next one when it leaves."""

    def next(self, queue: QueueView) -> Assignment | None:
        members = queue.members
        if not members:
            return None
        waits = queue.options.acknowledge is Acknowledge.WAIT
        left = members[0].credit.left if waits else WINDOW - members[0].under_way
        return Assignment((members[0].name,), min(members[0].batch, left)) if left > 0 else None


_BY_TYPE: dict[QueueType, Strategy] = {
    QueueType.PUSH: Push(),
    QueueType.ROUND_ROBIN: RoundRobin(),
    QueueType.PULL: RoundRobin(),
}


_SINGLE_ACTIVE = SingleActive()


def by_type(queue: str, options: QueueOptions) -> Strategy:
    """The strategy of a queue that names none of its own."""
    return _SINGLE_ACTIVE if options.single_active_consumer else _BY_TYPE[options.type]


class ContainedStrategy:
    """Wraps a user's strategy. After an error, the queue falls back to the strategy of its type."""

    def __init__(self, strategy: Strategy, queue: str, options: QueueOptions) -> None:
        self._strategy = strategy
        self._usual = by_type(queue, options)
        self._queue = queue
        self._failed = False

    def next(self, queue: QueueView) -> Assignment | None:
        if not self._failed:
            try:
                chosen = self._strategy.next(queue)
                if chosen is None or self._makes_sense(chosen, queue):
                    return chosen
                problem = f"it chose {chosen!r}"
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            self._failed = True
            _log.error(
                "queue %s: its delivery strategy failed (%s); from now on it is delivered like any other %s queue",
                self._queue, problem, queue.options.type.value,
            )  # fmt: skip
        return self._usual.next(queue)

    def _makes_sense(self, chosen: Assignment, queue: QueueView) -> bool:
        names = {member.name for member in queue.members}
        return (
            isinstance(chosen, Assignment)
            and type(chosen.count) is int
            and chosen.count > 0
            and isinstance(chosen.consumers, tuple)
            and bool(chosen.consumers)
            and set(chosen.consumers) <= names
            and len(set(chosen.consumers)) == len(chosen.consumers)
        )


def contained(strategy_for: StrategyFor, queue: str, options: QueueOptions) -> Strategy:
    try:
        strategy = strategy_for(queue, options)
    except Exception:
        _log.exception("queue %s: its delivery strategy could not be made; it is delivered like any other queue", queue)
        return by_type(queue, options)
    return (
        strategy
        if isinstance(strategy, Push | RoundRobin | SingleActive)
        else ContainedStrategy(strategy, queue, options)
    )
