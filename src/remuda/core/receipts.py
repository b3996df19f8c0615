"""What those who ask are told."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from remuda.model.errors import Refused

Differences: TypeAlias = dict[str, tuple[Any, Any]]
"""Options asked for that a queue does not have: as asked, and as they stand (Q13)."""


class Receipt(msgspec.Struct, frozen=True):
    """What became of a published batch: the ids of all its rows, and which were refused or unchanged."""

    first: int
    """The offset of the first message taken in; the others follow."""
    given: range | list[str]
    refusals: dict[int, Refused]
    unchanged: tuple[int, ...]
    """Of the messages taken in, by number, those that repeat the last body of their object and key."""
    watch: int | None = None
    """Where a queue commits later than on receipt: what to wait for."""
    differs: dict[str, Differences] = {}
    """By queue, where the options given with the batch are not those that stand."""

    def __len__(self) -> int:
        return len(self.given)

    @property
    def ids(self) -> list[str]:
        """The ids of all messages of the batch, those refused included."""
        return [str(one) for one in self.given]

    @property
    def id(self) -> str:
        """The id of the first message, which is often the only one."""
        return str(self.given[0])

    @property
    def accepted(self) -> int:
        return len(self.given) - len(self.refusals)


class Declared(msgspec.Struct, frozen=True):
    """Whether a queue was created, and else where its options differ: asked, and as they stand."""

    created: bool
    differs: Differences
