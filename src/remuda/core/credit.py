"""Who takes messages, and how many of them at a time (Q2): credit is counted in messages and given back one by one."""

from __future__ import annotations

from typing import Final

import msgspec

WINDOW: Final = 1000
"""How many messages may be under way to a consumer whose answers are not waited for."""


class Credit:
    """How many unanswered messages its consumers may hold together."""

    __slots__ = ("limit", "members", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.members: list[tuple[str, Consumer]] = []
        """Queues and consumers that share it."""

    @property
    def left(self) -> int:
        return self.limit - self.used


class Consumer(msgspec.Struct):
    """Someone who takes messages from one queue."""

    name: str
    batch: int
    """Most messages in one delivery."""
    joined: int
    """Lower for those who came earlier."""
    tag: int
    credit: Credit
    served: int = 0
    """Higher for those served later; zero for never."""
    under_way: int = 0
    """Messages sent and not handed over yet, where handing over is watched."""
    unanswered: int = 0
    """Messages of this queue that await its answer."""
    queued: bool = False
    """Whether it stands among those that may be ready."""
    group: str | None = None
    priority: int = 0
    """Those of a higher one are served first, as long as they can take messages."""


def room(consumer: Consumer, waits: bool) -> int:
    """How many messages a consumer can take now."""
    return consumer.credit.left if waits else WINDOW - consumer.under_way
