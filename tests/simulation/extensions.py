"""Parts of one's own (Q20) for some queues: they do as the usual ones, until they raise or answer nonsense, which must
change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from remuda.broker.embedded.extensions import Extensions
from remuda.core.extensions import Assignment, DeliveryHandler, QueueView, Strategy
from remuda.core.queues.strategies import by_type
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions
from remuda.model.settlement import Outcome

_OFTEN = 0.05
"""How often a part fails."""


class Broken(Exception):
    pass


class Turns:
    """A strategy."""

    def __init__(self, usual: Strategy, random: Random) -> None:
        self._usual = usual
        self._random = random

    def next(self, queue: QueueView) -> Any:
        if self._random.random() >= _OFTEN:
            return self._usual.next(queue)
        if self._random.random() < 0.5:
            raise Broken
        return self._random.choice((5, Assignment(("nobody",)), Assignment((), 1)))


class Shelf:
    """A store of messages."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._held: dict[int, tuple[Messages, int]] = {}

    def put(self, first: int, messages: Messages) -> None:
        self._fail()
        self._held.update((first + row, (messages, row)) for row in range(len(messages.bodies)))

    def take(self, runs: Sequence[tuple[int, int]]) -> Any:
        self._fail()
        taken = [self._held.pop(offset, None) for first, count in runs for offset in range(first, first + count)]
        if None in taken:
            return None
        if self._random.random() < _OFTEN:
            return self._random.choice((5, Messages([b"another"], "another", ids=["1"])))
        return Messages.of([held[0][held[1]] for held in taken if held is not None])

    def discard(self, first: int, count: int) -> None:
        self._fail()
        for offset in range(first, first + count):
            self._held.pop(offset, None)

    def _fail(self) -> None:
        if self._random.random() < _OFTEN:
            raise Broken


class Onlooker:
    """A delivery handler, which lets everything go its way."""

    def received(self, queue: str, message: Message) -> str | None:
        return None

    def sending(self, queue: str, offset: int, consumers: tuple[str, ...]) -> str | None:
        return None

    def sent(self, queue: str, offset: int, consumers: tuple[str, ...]) -> None:
        raise Broken

    def answered(self, queue: str, offset: int, outcome: Outcome) -> Outcome:
        return outcome

    def timed_out(self, queue: str, offset: int) -> Outcome:
        return Outcome.NACK


def ones_own(random: Random) -> Extensions:
    """For each queue some of these parts, or none."""

    def or_none(part: Callable[[], Any]) -> Any:
        return part() if random.random() < 0.5 else None

    def strategy_for(queue: str, options: QueueOptions) -> Strategy:
        usual = by_type(queue, options)
        return or_none(lambda: Turns(usual, random)) or usual

    def handler_for(queue: str, options: QueueOptions) -> DeliveryHandler | None:
        handler: DeliveryHandler | None = or_none(Onlooker)
        return handler

    return Extensions(
        strategy_for=strategy_for, handler_for=handler_for, store_for=lambda queue, options: Shelf(random)
    )
