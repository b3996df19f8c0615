"""A message in one queue as one row: what every list of messages shows, under the same names everywhere.

The names are those of `docs/search.md`; in JSON they are written in camel case.
"""

from __future__ import annotations

from typing import Final

import msgspec

from remuda.model.document import QueueView
from remuda.model.life import Consumption, Life
from remuda.model.state import State

_OF_LIFE: Final = (
    "state", "modified", "queued", "delivered", "success", "archived", "consumed", "processed", "completed", "failed",
    "attempts", "confirmed_count", "duration", "reason", "moved_to",
)  # fmt: skip


class MessageRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One message in one queue. The body stays in the log; times are microseconds since the epoch, UTC."""

    offset: int
    id: str
    name: str
    """The topic it was published under."""
    topics: tuple[str, ...]
    topic_count: int = 1
    queue: str | None
    """None for a message that went to no queue."""
    state: State
    queued: bool
    delivered: bool
    success: bool
    archived: bool
    created: int
    timestamp: int | None = None
    """The producer's."""
    modified: int
    consumed: int | None = None
    processed: int | None = None
    completed: int | None = None
    failed: int | None = None
    attempts: int = 0
    confirmed_count: int = 0
    consumed_by: tuple[Consumption, ...] = ()
    duration: int | None = None
    reason: str | None = None
    moved_to: str | None = None
    object: str | None = None
    key: str | None = None
    mime_type: str = "application/octet-stream"
    size: int = 0
    excerpt: str = ""
    """The beginning of the body."""

    @classmethod
    def of(
        cls, offset: int, created: int, id: str, name: str, topics: tuple[str, ...], object: str | None,
        key: str | None, timestamp: int | None, mime_type: str, size: int, queue: str | None,
        life: Life | QueueView,
    ) -> MessageRow:  # fmt: skip
        own = topics or (name,)
        return cls(
            offset=offset, id=id, name=name, topics=own, topic_count=len(own), queue=queue or None, created=created,
            timestamp=timestamp, object=object, key=key, mime_type=mime_type, size=size,
            consumed_by=tuple(life.consumed_by), **{name: getattr(life, name) for name in _OF_LIFE},
        )  # fmt: skip


def excerpt(body: bytes, size: int, limit: int = 120) -> str:
    """The beginning of a body on one line or, if it is not text, its size."""
    try:
        text = " ".join(body[: limit * 4].decode().split())
    except UnicodeDecodeError as error:
        if error.start < len(body[: limit * 4]) - 4:
            return f"{size} bytes"
        text = " ".join(body[: error.start].decode().split())
    return text if len(text) <= limit and size <= len(body) else text[: limit - 1] + "…"
