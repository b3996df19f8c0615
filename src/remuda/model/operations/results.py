"""The results of a broker's methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from remuda.model.errors import Refused
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.state import State

Differences: TypeAlias = dict[str, tuple[Any, Any]]
"""Requested options that a queue does not have: the requested values, and the actual ones (Q13)."""


def differences(named: Mapping[str, Any] | None, options: QueueOptions) -> Differences:
    """The named options for which a queue has other values."""
    if named is None:
        return {}
    return {name: (value, getattr(options, name)) for name, value in named.items() if value != getattr(options, name)}


class Health(msgspec.Struct, frozen=True):
    """A broker's health."""

    live: bool
    """Whether it can continue without being opened again."""
    ready: bool
    """Whether it accepts messages now."""
    problems: dict[str, str] = {}
    """The parts that do not work, with the reason. Upkeep may have problems while the broker is ready."""


class Receipt(msgspec.Struct, frozen=True):
    """The result of a publish: the ids of all rows, and which were refused, unchanged or unroutable."""

    first: int
    """The offset of the first stored message; the others follow."""
    given: range | list[str]
    refusals: dict[int, Refused]
    unchanged: tuple[int, ...] = ()
    """Rows that are stored and repeat the last body of their object and key."""
    watch: int | None = None
    """If a queue commits later than on receipt: the number of the confirmation to wait for."""
    differs: dict[str, Differences] = {}
    """For each queue, the options given with the batch that differ from the queue's."""
    unroutable: tuple[int, ...] = ()
    """Rows that are stored and that no binding took: they are in the log but in no queue."""
    partly_refused: dict[int, Refused] = {}
    """Rows that some bindings of a router took and others refused, with the first refusal."""
    repeated: int | None = None
    """For a batch that its producer sent again: how many of its messages were stored the first time."""
    by_key: dict[int, str] = {}
    """Rows that are stored and that a queue did not simply add, by a rule for their key: `skipped`, since one of the
    key is enough for now, or `replaced`, since it took the place of the one that waited."""

    def __len__(self) -> int:
        return len(self.given)

    @property
    def ids(self) -> list[str]:
        """The ids of all messages of the batch, including refused ones."""
        return [str(one) for one in self.given]

    @property
    def id(self) -> str:
        """The id of the first, often the only, message."""
        return str(self.given[0])

    @property
    def accepted(self) -> int:
        return len(self.given) - len(self.refusals)


class Declared(msgspec.Struct, frozen=True):
    """Whether a queue was created; if not, which options differ: the requested values, and the actual ones."""

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
    """How many messages ever entered each state in this queue."""
    pulls: int = 0
    """Pulls that wait for a message."""
    late_answers: int = 0
    """Answers ignored since the start because they came too late or twice."""

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
