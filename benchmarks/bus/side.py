"""What the stage needs of a bus, whoever makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

Executor = Literal["asyncio", "threads", "processes"]
Sync = Literal["os", "always", "memory"]

WORKERS: Final[dict[Executor, int]] = {"asyncio": 4, "threads": 4, "processes": 2}
LONGEST_POLL: Final = 0.01
SHORTEST_POLL: Final = 0.001
"""How often, in seconds, sides that poll look for messages: far more often than they do by default."""


class Setup(msgspec.Struct, frozen=True):
    """How a side shall run."""

    executor: Executor
    sync: Sync
    directory: Path

    @property
    def workers(self) -> int:
        return WORKERS[self.executor]


class Unfit(Exception):
    """This side has nothing to offer for a setup; the text says why."""


class Running(Protocol):
    """A bus whose workers are at work."""

    @property
    def description(self) -> str:
        """What runs, and what outlives what."""

    def publish(self, body: str) -> None: ...

    def publish_many(self, bodies: list[str]) -> None: ...
