"""A message (M2): what was said, about what, to whom. The body is the user's bytes, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

NO_HEADERS: Final[Mapping[str, str]] = {}
CORRELATION: Final = "cap-corr-id"
"""The header that names the message this one was made from."""


class Priority(IntEnum):
    NORMAL = 0
    HIGH = 1


class Message(msgspec.Struct, frozen=True):
    """One message. Times are microseconds since the epoch, UTC."""

    name: str
    body: bytes
    id: str = ""
    topics: tuple[str, ...] = ()
    object: str | None = None
    key: str | None = None
    timestamp: int | None = None
    mime_type: str = "application/octet-stream"
    headers: Mapping[str, str] = NO_HEADERS
    priority: Priority = Priority.NORMAL
    created: int = 0
    expires: int | None = None
    due: int | None = None
