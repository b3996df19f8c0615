"""What the log remembers. The core makes these records, the log keeps them, recovery plays them back.

Messages and events are numbered separately, each without gaps: a message's *offset* and an event's *position*.
"""

from __future__ import annotations

from typing import Final

import msgspec

from remuda.model.messages import Column, Messages
from remuda.model.queues.options import QueueOptions, Status
from remuda.model.queues.routing import Binding, ExchangeKind
from remuda.model.state import State


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Messages at offsets `first`, `first + 1`, …: each logged (L), then queued (Q) in its queues or unchanged (U)."""

    first: int
    created: int
    messages: Messages
    queues: Column[tuple[str, ...]]
    digest: Column[bytes | None] = None
    """Hash of the body where object and key are given, for the compacter and the history."""
    producer: str | None = None
    """The sender of the batch. If it sends it again, under the same `sequence`, the batch is not stored twice."""
    sequence: int = 0

    def __len__(self) -> int:
        return len(self.messages)


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` neighbouring messages from offset `first` changed to `state` in one queue."""

    queue: str
    state: State
    first: int
    count: int = 1
    consumer: str | None = None
    attempt: int = 0
    reason: str | None = None
    due: int | None = None
    """When a delayed message (R, or Q with a delay) becomes available."""
    ahead: bool = False
    """Whether it is put back before all regular messages."""
    who: str | None = None
    """The person behind an operator's move."""
    priority: int = 0
    """The priority of messages that come from another queue."""
    detail: str | None = None
    """More than the reason says, such as a traceback; kept in the log only."""
    to: str | None = None
    """The queue that messages which ended here moved to; they are not parked here."""


class Events(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events at positions `first`, `first + 1`, …, all at `time`."""

    first: int
    time: int
    rows: list[Event]

    def __len__(self) -> int:
        return len(self.rows)


class QueueChange(msgspec.Struct, frozen=True, array_like=True):
    """A queue was created or removed, its options or its status changed, or its parked messages were forgotten."""

    action: str
    queue: str
    time: int
    options: QueueOptions | None = None
    status: Status | None = None
    first: int = 0
    count: int = 0
    who: str | None = None
    named: tuple[str, ...] = ()
    """Options set by the subscriber that created the queue, while its type is still open."""


class ExchangeChange(msgspec.Struct, frozen=True, array_like=True):
    """An exchange was declared with its bindings, removed, bound or unbound."""

    action: str
    exchange: str
    time: int
    kind: ExchangeKind | None = None
    bindings: tuple[Binding, ...] = ()
    turn: int = 0
    """Where a round-robin router goes on."""


class SpoolTaken(msgspec.Struct, frozen=True, array_like=True):
    """The first `rows` rows of a batch in the spool are taken in; it is `done` with the last of them.

    The messages of its newest rows are the next record, at offset `first`; without that, this one does not count.
    """

    app: str
    batch: int
    rows: int
    time: int
    done: bool = False
    first: int | None = None
    refused: dict[int, str] = {}
    """Rows that no queue took, with the reason."""


EXPIRED: Final = "expired"
"""The reason of messages whose deadline has come; it does not go with them to the queue for expired ones."""
NEVER_DELIVERED: Final = -1
"""The `attempt` of a message that returns to its queue before any consumer had it."""

CREATED: Final = "created"
REMOVED: Final = "removed"
CONFIGURED: Final = "configured"
STATUS: Final = "status"
FORGOTTEN: Final = "forgotten"
KEY_PAUSED: Final = "key paused"
"""`named` is the key, and `first` until when it waits."""
BOUND: Final = "bound"
UNBOUND: Final = "unbound"
TURNED: Final = "turned"

Record = Appended | Events | QueueChange | ExchangeChange | SpoolTaken


def change_words(change: QueueChange) -> str:
    """What was done to a queue, for people."""
    match change.action:
        case "status":
            return f"status set to {change.status.value}" if change.status is not None else "status changed"
        case "configured":
            return "options changed"
        case "forgotten":
            return "dead letter forgotten" if change.count == 1 else f"{change.count} dead letters forgotten"
        case "key paused":
            return f"key {', '.join(change.named)} {'paused' if change.first > change.time else 'goes on'}"
        case action:
            return action
