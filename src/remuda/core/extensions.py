"""The core's replaceable parts (Q20), each a small protocol: how messages find consumers, and who may object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from remuda.core.effects import Answer
from remuda.model.message import Message
from remuda.model.options import QueueOptions


class Consumer(msgspec.Struct):
    """Someone who takes messages from one queue."""

    name: str
    batch: int
    joined: int
    """Lower for those who came earlier."""
    unanswered: int = 0
    """Deliveries that await an answer."""
    served: int = 0
    """Higher for those served later; zero for never."""


class Line(Protocol):
    """What a strategy sees of a queue."""

    @property
    def options(self) -> QueueOptions: ...
    @property
    def waiting(self) -> int: ...
    @property
    def unanswered(self) -> int:
        """Deliveries of the whole queue that no consumer has answered yet."""
        ...

    @property
    def members(self) -> Sequence[Consumer]:
        """Consumers, the longest connected first."""
        ...


class Assignment(msgspec.Struct, frozen=True):
    """The next `count` messages go to these consumers, each of whom gets all of them."""

    consumers: tuple[str, ...]
    count: int = 1


class Strategy(Protocol):
    """Chooses who gets the next messages; None while nobody can take any."""

    def next(self, line: Line) -> Assignment | None: ...


class DeliveryHandler(Protocol):
    """Asked at each turn of a message's way through a queue. Offsets name messages already taken in."""

    def received(self, queue: str, message: Message) -> str | None:
        """None to take the message, or the reason to refuse it."""
        ...

    def sending(self, queue: str, offset: int, consumers: tuple[str, ...]) -> str | None:
        """None to send the message, or the reason to end it undelivered."""
        ...

    def sent(self, queue: str, offset: int, consumers: tuple[str, ...]) -> None: ...

    def answered(self, queue: str, offset: int, answer: Answer) -> Answer:
        """The answer to go by; usually the one given."""
        ...

    def timed_out(self, queue: str, offset: int) -> Answer:
        """What to make of a missing answer; usually `Answer.NEGATIVE`."""
        ...


StrategyFor = Callable[[str, QueueOptions], Strategy]
HandlerFor = Callable[[str, QueueOptions], DeliveryHandler | None]


def no_handler(queue: str, options: QueueOptions) -> None:
    """The default: nobody objects, and nothing is asked."""
