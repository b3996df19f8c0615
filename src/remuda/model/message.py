"""A message (M2): headers and a body. The body is the user's bytes, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from remuda.model import cap_headers
from remuda.model.errors import InvalidMessage
from remuda.model.values.texts import shown

NO_HEADERS: Final[Mapping[str, str]] = {}
CORRELATION: Final = cap_headers.CORRELATION
"""The header with the id of the message this one came from."""
MAX_PRIORITY: Final = 31
_SHOWN: Final = 100
"""Bytes of a body that are printed."""


class Priority(IntEnum):
    """The two named priorities; any number from 0 to 31 works too."""

    NORMAL = 0
    HIGH = 10


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
    priority: int = 0
    created: int = 0
    expires: int | None = None
    due: int | None = None
    wire: bytes | None = None
    """Properties and headers exactly as another protocol delivered them, for when the message leaves that way again."""

    def __repr__(self) -> str:
        """The fields that differ from their defaults. A long body, which may be megabytes, is cut."""
        body = f"{self.body[:_SHOWN]!r}… ({len(self.body)} bytes)" if _is_long(self.body) else repr(self.body)
        fields = [f"name={self.name!r}", f"body={body}"]
        for name in self.__struct_fields__[2:]:
            if (value := getattr(self, name)) != getattr(_EMPTY, name):
                fields.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(fields)})"


_EMPTY: Final = Message("", b"")


def _is_long(body: object) -> bool:
    return isinstance(body, bytes | bytearray) and len(body) > _SHOWN + 20


def read_priority(value: Any) -> int:
    """A priority as people write it: 0 to 31, `normal` or `high`."""
    if type(value) is int and 0 <= value <= MAX_PRIORITY:
        return value
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return int(Priority[value.upper()])
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_PRIORITY:
        return int(value)
    raise InvalidMessage(
        f"priority must be 0 to {MAX_PRIORITY}, 'normal' or 'high', not {shown(value)}; nothing was stored"
    )
