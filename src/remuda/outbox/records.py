"""Values and errors of the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from remuda.model.errors import RemudaError

LANES: Final = 8
"""The number of lanes into which messages are divided by key; relays share lanes."""


class OutboxError(RemudaError):
    """The outbox's database cannot be used as it is."""


class SchemaMissing(OutboxError):
    """The tables do not exist yet."""


class Status(StrEnum):
    """The status of a message in the outbox."""

    SCHEDULED = "scheduled"
    """Committed, and not yet sent."""
    SUCCEEDED = "succeeded"
    """The broker has it."""
    DELAYED = "delayed"
    """The broker refused it, or an earlier message with the same key; it will be sent again."""
    FAILED = "failed"
    """Refused as often as the retry policy allows. An operator can retry it."""


class Stored(msgspec.Struct, frozen=True):
    """A message in the outbox, as operators see it. Times are seconds since the epoch."""

    id: str
    topic: str
    key: str | None
    created: float
    attempts: int
    reason: str | None
    status: Status
    next_at: float | None


class Row(msgspec.Struct, frozen=True):
    """A row that a relay has read. `number` is its `seq`, or the `number` of a held row."""

    number: int
    lane: int
    mark: int
    """The position of its transaction; for a held row, its attempts."""
    id: str
    topic: str
    body: bytes
    key: str | None
    object: str | None
    mime_type: str
    headers: str
    priority: int
    due: int | None
    expires: int | None
    produced: int | None
    topics: str | None
    created: Any
    wire: bytes | None


class Settled(msgspec.Struct, frozen=True):
    """What to record about a message that the broker refused, or that was held before."""

    row: Row
    status: Status
    attempts: int
    reason: str | None
    wait: float | None
    keep: float | None


class Collected(msgspec.Struct, frozen=True):
    """The numbers of rows that were removed."""

    succeeded: int = 0
    failed: int = 0
    inbox: int = 0


class OutboxBatch(msgspec.Struct, frozen=True):
    """Rows in the order to send them, and the progress of their lanes once they are sent."""

    lanes: tuple[int, ...]
    rows: Sequence[Row]
    after: Any
    full: bool
    """Whether more rows may be ready."""
