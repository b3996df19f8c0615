"""Entries of the log, for messages and for events, as programs and the live tail read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from remuda.model.message_row import excerpt
from remuda.model.messages import cell
from remuda.model.records import Appended, Events
from remuda.server.http.security.masks import masked

R = TypeVar("R", Appended, Events)


def message_entries(record: Appended) -> Iterator[dict[str, Any]]:
    for row, message in enumerate(record.messages):
        queues: tuple[str, ...] = cell(record.queues, row)
        yield {
            "offset": record.first + row,
            "time": message.created,
            "id": message.id,
            "name": message.name,
            "topics": list(message.topics or (message.name,)),
            "timestamp": message.timestamp,
            "queues": list(queues),
            "object": message.object,
            "key": message.key,
            "mimeType": message.mime_type,
            "headers": masked(message.headers),
            "size": len(message.body),
            "excerpt": excerpt(message.body, len(message.body)),
        }


def event_entries(record: Events) -> Iterator[dict[str, Any]]:
    for row, event in enumerate(record.rows):
        entry = {
            "position": record.first + row,
            "time": record.time,
            "queue": event.queue,
            "state": event.state.value,
            "offset": event.first,
            "count": event.count,
        }
        for name in ("consumer", "attempt", "reason", "due", "who"):
            if value := getattr(event, name):
                entry[name] = value
        if event.to is not None:
            entry["movedTo"] = event.to
        yield entry


def numbered_from(read: Callable[..., Iterator[R]], start: int, limit: int) -> list[R]:
    """Records from number `start` on or, where those were deleted, from the first one that is left."""
    records = list(read(start, start + limit))
    if not records:
        following = next(iter(read(start)), None)
        if following is not None:
            records = list(read(following.first, following.first + limit))
    return records
