"""Entries of the log, for messages and for events, as programs and the live tail read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from remuda.model.messages import cell
from remuda.model.records import Appended, Events
from remuda.server.http.masks import masked
from remuda.server.http.search import excerpt

R = TypeVar("R", Appended, Events)


def message_entries(record: Appended) -> Iterator[dict[str, Any]]:
    for row, message in enumerate(record.messages):
        queues: tuple[str, ...] = cell(record.queues, row)
        yield {
            "offset": record.first + row,
            "time": message.created,
            "id": message.id,
            "topic": message.name,
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
        yield entry


def numbered_from(read: Callable[..., Iterator[R]], start: int, limit: int) -> list[R]:
    """Records from number `start` on or, where those were deleted, from the first one that is left."""
    records = list(read(start, start + limit))
    if not records:
        following = next(iter(read(start)), None)
        if following is not None:
            records = list(read(following.first, following.first + limit))
    return records
