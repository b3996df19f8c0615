"""The service's answers: frozen values for the API and the pages."""

from __future__ import annotations

from typing import Any

import msgspec

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


class MessageRow(msgspec.Struct, frozen=True, rename="camel"):
    """One message in one queue, as a row of a list. Its history is found by its id."""

    offset: int
    id: str
    topic: str
    queue: str
    state: State
    created: int
    modified: int
    attempts: int = 0
    reason: str | None = None
    object: str | None = None
    key: str | None = None
    mime_type: str = "application/octet-stream"
    size: int = 0
    excerpt: str = ""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages to find: those that match every field given."""

    queue: str | None = None
    topic: str | None = None
    """A prefix: `fruit` and `fruit.*` find `fruit.sour`, not `fruits.x`; case does not matter."""
    states: frozenset[State] = frozenset()
    since: int | None = None
    until: int | None = None
    object: str | None = None
    key: str | None = None
    text: str | None = None
    cursor: str | None = None
    limit: int = 50


class Page(msgspec.Struct, frozen=True, rename="camel"):
    """Messages, the newest first, and where the next page begins."""

    messages: list[MessageRow]
    next: str | None = None
    note: str | None = None
    """What the reader should know, such as how far back the search went."""
    behind: int | None = None
    """How many messages the search index does not contain yet; None if no index was used."""


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
    due: int | None = None
    waited: int | None = None
    """For a fetch: how long the message had been available in the queue."""
    took: int | None = None
    """For an answer: how long the consumer had held it."""


class Life(msgspec.Struct, frozen=True, rename="camel"):
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
