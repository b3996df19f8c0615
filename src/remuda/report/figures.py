"""What a report says: frozen values, small enough to be held, printed and sent. Lengths of time are in seconds."""

from __future__ import annotations

from datetime import datetime

import msgspec

from remuda.model.state import State


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Percentiles of a time; None where there was nothing to measure."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Copies of messages in queues: how many, what became of them, and how long it took."""

    published: int = 0
    """Came into a queue."""
    succeeded: int = 0
    dead: int = 0
    """Ended without success: dead, invalid or not wanted."""
    moved: int = 0
    """Sent on to another queue, as by a failover: their outcome is counted there."""
    waiting: int = 0
    """Not ended yet: queued, in hand, or between two attempts."""
    retried: int = 0
    """Came to a second attempt."""
    unchanged: int = 0
    """Held back because they said nothing new. Of a queue: those under the names of its messages."""
    wait: Times = Times()
    """From publishing to the first fetch."""
    processing: Times = Times()
    """From the fetch that was first answered to that answer."""


class Window(msgspec.Struct, frozen=True, rename="camel"):
    """What was published from `start` on for the length of a window, and what became of it by now."""

    start: datetime
    figures: Figures


class Step(msgspec.Struct, frozen=True, rename="camel"):
    """A step of the retry funnel: how many reached this attempt, and how many of them succeeded there."""

    attempt: int
    reached: int
    succeeded: int


class Reason(msgspec.Struct, frozen=True, rename="camel"):
    """Why messages of a queue ended without success."""

    queue: str | None
    state: State
    reason: str
    messages: int
    last: datetime | None = None


class QueueReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue. Only the busiest ones have the details: `windows`, `funnel` and `reasons`."""

    name: str
    figures: Figures
    detailed: bool = False
    windows: tuple[Window, ...] = ()
    funnel: tuple[Step, ...] = ()
    reasons: tuple[Reason, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it."""

    source: str
    written: datetime
    selection: str = ""
    """What was asked for, in words; empty when it was everything."""
    first: datetime | None = None
    """When the oldest message was published; None where there is none."""
    last: datetime | None = None
    window: float = 1.0
    messages: int = 0
    queue_count: int = 0
    in_retry: int = 0
    """Of those that wait, those between two attempts."""
    figures: Figures = Figures()
    windows: tuple[Window, ...] = ()
    funnel: tuple[Step, ...] = ()
    reasons: tuple[Reason, ...] = ()
    """Of all queues, the most frequent first."""
    queues: tuple[QueueReport, ...] = ()
    """The busiest first."""

    @property
    def detailed(self) -> tuple[QueueReport, ...]:
        return tuple(queue for queue in self.queues if queue.detailed)
