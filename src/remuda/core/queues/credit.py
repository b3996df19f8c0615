"""Consumers and their credit (Q2): how many messages they may hold unanswered, counted in messages, not deliveries."""

from __future__ import annotations

from typing import Final

import msgspec

WINDOW: Final = 1000
"""How many messages may be under way to a consumer whose next delivery does not wait for its answers."""


class Credit:
    """How many unanswered messages its consumers may hold together."""

    __slots__ = ("limit", "members", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.members: list[tuple[str, Consumer]] = []
        """The consumers that share it, each with the name of its queue."""

    @property
    def left(self) -> int:
        return self.limit - self.used


class Consumer(msgspec.Struct):
    """A consumer of one queue."""

    name: str
    batch: int
    """Most messages in one delivery."""
    joined: int
    """Lower for those that subscribed earlier."""
    tag: int
    credit: Credit
    served: int = 0
    """Higher for those served later; zero for never."""
    under_way: int = 0
    """Messages sent and not handed over yet, where handing over is watched."""
    unanswered: int = 0
    """Messages of this queue that await its answer."""
    queued: bool = False
    """Whether it is in the heap of consumers that may be ready."""
    group: str | None = None
    priority: int = 0
    """Consumers of a higher priority are served first while they have credit."""


def room(consumer: Consumer, waits: bool) -> int:
    """How many messages a consumer can take now."""
    return consumer.credit.left if waits else WINDOW - consumer.under_way
