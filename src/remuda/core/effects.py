"""What the core wants done: records to keep, deliveries to make, producers to answer, handlers to tell."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from remuda.model.records import Record


class Answer(StrEnum):
    """What a consumer says of a delivery."""

    ACKNOWLEDGE = "acknowledge"
    NEGATIVE = "negative"
    """Failed: the queue's `put_back` decides."""
    RETRY = "retry"
    """Failed: again, after a delay of the consumer's choice."""
    RELEASE = "release"
    """Not now: back to the queue, the attempt does not count."""
    INVALID = "invalid"
    NOT_INTERESTED = "not-interested"
    DEAD = "dead"
    """Give up; optionally on to another queue."""


class Sending(msgspec.Struct, frozen=True):
    """Messages on their way to one consumer. `lease` guards the answer; None where no answer is awaited."""

    queue: str
    consumer: str
    lease: int | None
    runs: list[tuple[int, int]]
    attempts: list[int]
    """The attempt of each run: 1 for the first delivery."""
    deadline: int
    remaining: tuple[int, int] = (0, 0)
    """High and normal messages that still wait, for a pull that asked."""
    request: int | None = None
    """The pull request that this answers."""

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)


class Commit(msgspec.Struct, frozen=True):
    """The fate of one published batch that its producer waits for; `reason` where it failed."""

    watch: int
    reason: str | None = None


class NoticeKind(StrEnum):
    QUEUE_CREATED = "queue created"
    QUEUE_REMOVED = "queue removed"
    CONSUMER_SUBSCRIBED = "consumer subscribed"
    CONSUMER_UNSUBSCRIBED = "consumer unsubscribed"
    STATUS_CHANGED = "status changed"
    PRODUCED = "produced"
    CONSUMED = "consumed"
    ACKNOWLEDGED = "acknowledged"
    TIMED_OUT = "timed out"
    ACKNOWLEDGE_TIMED_OUT = "acknowledge timed out"


class Notice(msgspec.Struct, frozen=True):
    """Something happened in a queue (Q19); for messages, to `count` neighbours from offset `first`."""

    kind: NoticeKind
    queue: str
    time: int
    first: int = 0
    count: int = 0
    consumer: str | None = None
    detail: str | None = None


class Effects(msgspec.Struct):
    """Everything that came of a batch of commands, in order."""

    records: list[Record]
    sendings: list[Sending]
    commits: list[Commit]
    notices: list[Notice]
    durable: bool = False
    """Whether anything here concerns a persistent queue and must be kept before it is confirmed."""

    @property
    def concerns_others(self) -> bool:
        """Whether somebody beside the one who caused it is to hear of it."""
        return bool(self.sendings or self.commits or self.notices)
