"""What those who ask a broker are told."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from remuda.model.errors import Refused
from remuda.model.options import QueueOptions, Status
from remuda.model.state import State

Differences: TypeAlias = dict[str, tuple[Any, Any]]
"""Options asked for that a queue does not have: as asked, and as they stand (Q13)."""


class Health(msgspec.Struct, frozen=True):
    """How a broker is."""

    live: bool
    """Whether it can go on without being opened again."""
    ready: bool
    """Whether it takes whatever it is given now."""
    problems: dict[str, str] = {}
    """What does not work, by part, with the reason. Upkeep may have problems while the broker is ready."""


class Receipt(msgspec.Struct, frozen=True):
    """What became of a published batch: the ids of all its rows, and which were refused, unchanged or unroutable."""

    first: int
    """The offset of the first message taken in; the others follow."""
    given: range | list[str]
    refusals: dict[int, Refused]
    unchanged: tuple[int, ...] = ()
    """Of the messages taken in, by number, those that repeat the last body of their object and key."""
    watch: int | None = None
    """Where a queue commits later than on receipt: what to wait for."""
    differs: dict[str, Differences] = {}
    """By queue, where the options given with the batch are not those that stand."""
    unroutable: tuple[int, ...] = ()
    """Of the messages taken in, by number, those that no binding took: they are in the log and in no queue."""
    partly_refused: dict[int, Refused] = {}
    """Rows that some bindings of a router took and others refused, with the first refusal."""
    repeated: int | None = None
    """Of a batch that its producer sent again: how many of its messages had been taken in the first time."""

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


class QueueInfo(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A queue's options, status and numbers at one moment."""

    name: str
    status: Status
    options: QueueOptions
    high: int
    """Waiting messages with a priority above 0."""
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


class ParkedMessage(msgspec.Struct, frozen=True):
    """One message that ended without success, and waits for an operator."""

    offset: int
    state: State
    reason: str
    time: int


class Removed(msgspec.Struct, frozen=True):
    """What a round of retention removed (L6)."""

    forgotten: int
    """Dead, invalid and unwanted messages past their time."""
    messages: int
    events: int
    bytes_freed: int
