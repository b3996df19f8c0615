"""A message that a handler's call causes."""

from __future__ import annotations

import msgspec


class Reply(msgspec.Struct, frozen=True):
    """The return value on its way to the callback, a kept result, or word of a failure.

    With `queue` it goes there alone, past all topics.
    """

    topic: str
    body: bytes
    mime_type: str
    headers: dict[str, str]
    queue: str | None = None
    id: str = ""
