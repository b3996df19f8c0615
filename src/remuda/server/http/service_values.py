"""The service's answers: frozen values for the API and the pages."""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.model.message_row import MessageRow
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.state import State


class QueueSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A queue's numbers at one moment; rates are messages per second over the last samples."""

    name: str
    status: str
    type: str
    waiting: int
    delayed: int
    in_flight: int
    dead: int
    invalid: int
    not_interested: int
    consumers: int
    published_per_second: float
    done_per_second: float
    failed_per_second: float
    internal: bool = False
    oldest: int | None = None
    """When the oldest waiting message was published; None if none waits, or it is unknown."""

    @property
    def bad(self) -> bool:
        """Whether somebody should look at it: messages ended without success, or wait while nobody takes them."""
        return bool(self.parked or (self.waiting and (not self.consumers or self.status != "running")))

    @property
    def size(self) -> int:
        return self.waiting + self.delayed + self.in_flight

    @property
    def parked(self) -> int:
        return self.dead + self.invalid + self.not_interested


class QueueDetail(msgspec.Struct, frozen=True, rename="camel"):
    """A queue with its options, its consumers and its oldest message."""

    summary: QueueSummary
    options: dict[str, Any]
    consumers: tuple[str, ...]
    entered: dict[str, int]
    """How many messages ever entered each state."""
    late_answers: int
    oldest: int | None = None
    """When the oldest message that still waits was published, in microseconds; None if none waits or it is unknown."""
    flow: FlowInfo | None = None
    """What the queue's rules hold back, if it has any."""


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """What an operator did to a queue."""

    time: int
    change: str
    what: str
    who: str


class TimelineEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that happened to a message."""

    time: int
    queue: str
    state: State
    what: str
    attempt: int = 0
    consumer: str | None = None
    reason: str | None = None
    detail: str | None = None
    who: str | None = None
    moved_to: str | None = None
    due: int | None = None
    waited: int | None = None
    """For a fetch: how long the message had been available in the queue."""
    took: int | None = None
    """For an answer: how long the consumer had held it."""


class MessageLife(msgspec.Struct, frozen=True, rename="camel"):
    """One message's whole life."""

    document: dict[str, Any]
    timeline: list[TimelineEntry]
    parent: str | None = None
    """The id of the message that caused this one."""
    children: list[MessageRow] = []


class Group(msgspec.Struct, frozen=True, rename="camel"):
    """Dead letters that failed with the same exception at the same place."""

    key: str
    exception: str
    place: str
    sample: str
    count: int
    first: int
    last: int
    offsets: list[int]
