"""A message that results from a handler call."""

from __future__ import annotations

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """A return value for the callback, a kept result, or the report of a failure.

    With `queue`, it goes to that queue only, whatever is subscribed to the topic.
    """

    topic: str
    body: bytes
    mime_type: str
    headers: dict[str, str]
    queue: str | None = None
    id: str = ""
