"""Messages as rows of the outbox, and back."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from remuda.model.errors import InvalidMessage
from remuda.model.messages import Messages, cell, fold
from remuda.outbox.records import LANES, Row

_encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, Any]).decode
_topics = msgspec.json.Decoder(tuple[str, ...]).decode


class Ids:
    """UUIDs of version 7: ordered by time, unique without coordination. A counter keeps those of a process in order."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._last = 0
        self._process = os.getpid()

    def take(self, count: int) -> list[str]:
        with self._guard:
            start = int.from_bytes(os.urandom(5))
            first = max(
                time.time_ns() // 1_000_000 << 42 | start, self._last + 1 if self._process == os.getpid() else 0
            )
            self._process = os.getpid()
            self._last = first + count - 1
        noise = os.urandom(4 * count)
        made = []
        for row in range(count):
            moment = first + row
            # 48 bits of milliseconds, 42 of counter (12 + 30), 32 of noise.
            count_bits = moment & ((1 << 42) - 1)
            value = (
                (moment >> 42) << 80
                | 0x7 << 76
                | (count_bits >> 30) << 64
                | 0x2 << 62
                | (count_bits & 0x3FFFFFFF) << 32
            )
            value |= int.from_bytes(noise[4 * row : 4 * row + 4])
            text = f"{value:032x}"
            made.append(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
        return made


_ids = Ids()


def with_ids(messages: Messages) -> Messages:
    """The messages, each with an id. Those without get one here, so that it is known before the commit."""
    if messages.ids is None:
        return msgspec.structs.replace(messages, ids=_ids.take(len(messages)))
    if isinstance(messages.ids, list) and "" in messages.ids:
        return msgspec.structs.replace(messages, ids=[own or _ids.take(1)[0] for own in messages.ids])
    return messages


def lane_of(key: str | None) -> int | None:
    """The lane of a key; None without a key, for the lane of the transaction."""
    return None if key is None else zlib.crc32(key.encode("utf-8", "surrogatepass")) % LANES


def one(messages: Messages) -> dict[str, Any]:
    """Parameters for a single message."""
    values = _values(messages, 0)
    values["ids"], values["bodies"] = values.pop("id"), values.pop("body")
    return values


def shared(messages: Messages) -> dict[str, Any] | None:
    """Parameters for messages that differ in id and body only; None if they differ in more."""
    columns = (
        messages.name, messages.topics, messages.object, messages.key, messages.timestamp, messages.mime_type,
        messages.headers, messages.priority, messages.expires, messages.due, messages.wire,
    )  # fmt: skip
    if any(isinstance(column, list) for column in columns):
        return None
    given = _values(messages, 0)
    del given["id"], given["body"]
    given["ids"] = [messages.id(row) for row in range(len(messages))]
    given["bodies"] = messages.bodies
    return given


def columns(messages: Messages) -> dict[str, list[Any]]:
    """Parameters with a list for each column."""
    rows = [_values(messages, row) for row in range(len(messages))]
    given = {name: [row[name] for row in rows] for name in rows[0]}
    given["ids"], given["bodies"] = given.pop("id"), given.pop("body")
    return given


def singles(messages: Messages) -> list[dict[str, Any]]:
    """Parameters for each message separately."""
    found = []
    for row in range(len(messages)):
        values = _values(messages, row)
        values["ids"], values["bodies"] = values.pop("id"), values.pop("body")
        if values["lane"] is None:
            values["lane"] = 0
        found.append(values)
    return found


def _values(messages: Messages, row: int) -> dict[str, Any]:
    key = cell(messages.key, row)
    topics = cell(messages.topics, row)
    values: dict[str, Any] = {
        "lane": None,
        "priority": int(cell(messages.priority, row)),
        "due": cell(messages.due, row),
        "expires": cell(messages.expires, row),
        "produced": cell(messages.timestamp, row),
        "id": messages.id(row),
        "topic": cell(messages.name, row),
        "topics": _encode(topics).decode() if topics else None,
        "object": cell(messages.object, row),
        "key": key,
        "mime_type": cell(messages.mime_type, row),
        "headers": _text(cell(messages.headers, row)),
        "wire": cell(messages.wire, row),
        "body": messages.bodies[row],
    }
    for name in ("id", "topic", "object", "key", "mime_type", "headers"):
        value = values[name]
        if value is not None and not _storable(value):
            raise InvalidMessage(f"{name} must be a string that a database can hold, not {value!r}; nothing was stored")
    values["lane"] = lane_of(key)
    return values


def _storable(value: object) -> bool:
    return isinstance(value, str) and (
        (value.isascii() and "\0" not in value)
        or ("\0" not in value and not any("\ud800" <= one <= "\udfff" for one in value))
    )


def _text(headers: Mapping[str, Any]) -> str:
    if not headers:
        return "{}"
    try:
        return _encode(headers).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidMessage(f"the headers cannot be stored: {error}; nothing was stored") from error


def messages_of(rows: Sequence[Row]) -> Messages:
    """The rows as messages for the broker."""
    known: dict[str, Mapping[str, Any]] = {}
    headers: list[Mapping[str, Any]] = []
    for row in rows:
        if row.headers not in known:
            known[row.headers] = _headers(row.headers)
        headers.append(known[row.headers])
    return Messages(
        bodies=[bytes(row.body) for row in rows],
        ids=[row.id for row in rows],
        name=fold([row.topic for row in rows]),
        topics=fold([_topics(row.topics) if row.topics else () for row in rows]),
        object=fold([row.object for row in rows]),
        key=fold([row.key for row in rows]),
        timestamp=fold([row.produced for row in rows]),
        mime_type=fold([row.mime_type for row in rows]),
        headers=fold(headers),
        priority=fold([row.priority for row in rows]),
        expires=fold([row.expires for row in rows]),
        due=fold([row.due for row in rows]),
        wire=fold([None if row.wire is None else bytes(row.wire) for row in rows]),
    )
