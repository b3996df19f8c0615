"""What every end of a shovel offers: messages that wait for an answer, and a place that confirms what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from remuda.model.messages import Messages


class ShovelBatch(Protocol):
    """Messages that the source has handed out. Each row is answered once; the rest go back when the source closes."""

    messages: Messages

    @property
    def marks(self) -> list[str]:
        """For each message, where it comes from, if that tells it from all others; else nothing."""
        ...

    @property
    def again(self) -> list[bool]:
        """Whether each message was handed out before, so that the target may have it already."""
        ...

    async def stored(self, rows: Sequence[int]) -> None:
        """The target has these."""
        ...

    async def reject(self, rows: Sequence[int], reason: str) -> None:
        """The target will never take these."""
        ...

    async def renew(self) -> None:
        """The rest takes a while."""
        ...


class Source(Protocol):
    """Where messages come from."""

    @property
    def up(self) -> bool: ...
    async def open(self) -> int:
        """Begin to consume; returns how many messages wait."""
        ...

    async def receive(self) -> ShovelBatch: ...
    async def forget(self) -> None:
        """Remove what was made at the source for this shovel."""
        ...

    async def close(self) -> None: ...


class Answer(msgspec.Struct, frozen=True):
    """What became of a batch at its target: rows that it stored, refused for now, and refused for good."""

    stored: list[int]
    later: dict[int, str]
    never: dict[int, str]


class Target(Protocol):
    """Where messages go."""

    @property
    def up(self) -> bool: ...
    async def open(self) -> None: ...
    async def deliver(self, messages: Messages, again: Sequence[bool], marks: Sequence[str]) -> Answer: ...
    async def close(self) -> None: ...
