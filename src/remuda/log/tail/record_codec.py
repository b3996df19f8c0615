"""Records as bytes and back: msgpack of columns, a shared column as its one value.

Every payload begins with the log's counters before the record, so that any readable frame tells exactly what was
lost before it. Bodies come last, so that readers who do not need them need not decode them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from remuda.model.errors import StorageError, UnsupportedFormat
from remuda.model.message import NO_HEADERS, Message
from remuda.model.messages import Column, Messages
from remuda.model.records import (
    Appended,
    Events,
    ExchangeChange,
    QueueChange,
    Record,
    SpoolTaken,
)

CHANGE: Final = 3
SPOOL: Final = 5
MESSAGES: Final = 6
EVENTS: Final = 7
EXCHANGE: Final = 8
_DROPPED: Final = frozenset({1, 2, 4})
"""Kinds that were written before the first release."""

_MIME_TYPE: Final = Message(name="", body=b"").mime_type
_Tuples = list[str | tuple[str, ...]]
Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Microseconds as Arrow and Parquet can hold them."""


class Decoded(NamedTuple):
    """A record, with the counters before it."""

    offset: int
    position: int
    record: Record


class Damaged(StorageError):
    """A payload whose checksum matches but whose content is not a record."""


class _Head(msgspec.Struct, array_like=True, gc=False):
    position: int
    first: int
    count: int


class _Columns(_Head, array_like=True):
    created: int
    name: str | list[str]
    queues: _Tuples
    ids: list[int | str] | None
    topics: _Tuples
    object: str | list[str | None] | None
    key: str | list[str | None] | None
    timestamp: Time | list[Time | None] | None
    mime_type: str | list[str] | None
    headers: dict[str, str] | list[dict[str, str]] | None
    priority: int | list[int]
    expires: Time | list[Time | None] | None
    due: Time | list[Time | None] | None
    digest: bytes | list[bytes | None] | None
    stamps: Time | list[Time] | None
    wire: bytes | list[bytes | None] | None
    producer: str | None
    sequence: int


class _Whole(_Columns, array_like=True):
    bodies: list[bytes]


pack = _encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_columns = msgspec.msgpack.Decoder(_Columns).decode
_decode_whole = msgspec.msgpack.Decoder(_Whole).decode
_decode_events = msgspec.msgpack.Decoder(tuple[int, Events]).decode
_decode_change = msgspec.msgpack.Decoder(tuple[int, int, QueueChange]).decode
_decode_exchange = msgspec.msgpack.Decoder(tuple[int, int, ExchangeChange]).decode
_decode_spool = msgspec.msgpack.Decoder(tuple[int, int, SpoolTaken]).decode
_UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, ValueError, OverflowError, MemoryError)
_CHANGES: Final = {QueueChange: CHANGE, ExchangeChange: EXCHANGE, SpoolTaken: SPOOL}


def encode(record: Record, offset: int, position: int) -> tuple[int, bytes]:
    """The kind and payload of a record that is appended when the counters stand at `offset` and `position`."""
    if type(record) is Appended:
        return MESSAGES, encode_appended(record, position)
    if type(record) is Events:
        return EVENTS, encode_events(record, offset)
    return _CHANGES[type(record)], _encode((offset, position, record))


def decode(kind: int, payload: bytes, *, bodies: bool = True) -> Decoded:
    """The record of a payload. Without `bodies` each body is `b""`. Raises `Damaged` if it is not a record."""
    try:
        if kind == MESSAGES:
            if bodies:
                whole = _decode_whole(payload)
                return Decoded(whole.first, whole.position, _appended(whole, whole.bodies))
            columns = _decode_columns(payload)
            if columns.count > len(payload):
                raise ValueError(f"{columns.count} messages in {len(payload)} bytes")
            return Decoded(columns.first, columns.position, _appended(columns, [b""] * columns.count))
        if kind == EVENTS:
            offset, events = _decode_events(payload)
            return Decoded(offset, events.first, events)
        if kind == CHANGE:
            return Decoded(*_decode_change(payload))
        if kind == EXCHANGE:
            return Decoded(*_decode_exchange(payload))
        if kind == SPOOL:
            return Decoded(*_decode_spool(payload))
    except _UNDECODABLE as error:
        raise Damaged(f"a frame of kind {kind} is not a record: {error}") from error
    if kind in _DROPPED:
        raise UnsupportedFormat(
            "this log was written before the first release, in a format that is not read any more; nothing was "
            "changed. Open it with the version that wrote it, and publish what is still needed into a new directory"
        )
    raise Damaged(f"a frame has the unknown kind {kind}")


def decode_messages(payload: bytes) -> Messages:
    """The messages of a payload, without the rest of their record."""
    try:
        whole = _decode_whole(payload)
        return _messages(whole, whole.bodies)
    except _UNDECODABLE as error:
        raise Damaged(f"a frame of messages cannot be decoded: {error}") from error


def message_range(payload: bytes) -> range:
    """The offsets in a payload of messages, without decoding them."""
    try:
        head = _decode_head(payload)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(f"a frame of messages cannot be decoded: {error}") from error
    return range(head.first, head.first + head.count)


def encode_events(record: Events, offset: int) -> bytes:
    return _encode((offset, record))


def encode_appended(record: Appended, position: int) -> bytes:
    messages = record.messages
    ids = messages.ids
    headers = messages.headers
    mime_type = messages.mime_type
    stamps = messages.created
    return _encode(
        (
            position,
            record.first,
            len(messages.bodies),
            record.created,
            messages.name,
            record.queues,
            [ids.start, ids.stop, ids.step] if type(ids) is range else ids,
            messages.topics,
            messages.object,
            messages.key,
            messages.timestamp,
            None if mime_type == _MIME_TYPE else mime_type,
            _plain(headers) if headers else None,
            messages.priority,
            messages.expires,
            messages.due,
            record.digest,
            None if type(stamps) is int and (stamps == 0 or stamps == record.created) else stamps,
            messages.wire,
            record.producer,
            record.sequence,
            messages.bodies,
        )
    )


def _plain(headers: Column[Mapping[str, str]]) -> Any:
    if type(headers) is dict:
        return headers
    if isinstance(headers, list):
        return [row if type(row) is dict else dict(row) for row in headers]
    return dict(headers) or None


def _messages(columns: _Columns, bodies: list[bytes]) -> Messages:
    count = columns.count
    if len(bodies) != count:
        raise ValueError(f"{len(bodies)} bodies for {count} messages")
    return Messages(
        bodies=bodies,
        name=columns.name,
        ids=_ids(columns.ids, count),
        topics=_tuples(columns.topics),
        object=columns.object,
        key=columns.key,
        timestamp=columns.timestamp,
        mime_type=_MIME_TYPE if columns.mime_type is None else columns.mime_type,
        headers=_headers(columns.headers),
        priority=columns.priority,
        created=columns.created if columns.stamps is None else columns.stamps,
        expires=columns.expires,
        due=columns.due,
        wire=columns.wire,
    )


def _appended(columns: _Columns, bodies: list[bytes]) -> Appended:
    messages, queues = _messages(columns, bodies), _tuples(columns.queues)
    return Appended(
        columns.first, columns.created, messages, queues, columns.digest, columns.producer, columns.sequence
    )


def _ids(ids: list[int | str] | None, count: int) -> range | list[str] | None:
    if ids is None:
        return None
    if len(ids) == 3 and type(ids[0]) is int:
        numbers = range(*ids)  # type: ignore[arg-type]
        if len(numbers) != count:
            raise ValueError(f"{len(numbers)} ids for {count} messages")
        return numbers
    if len(ids) != count:
        raise ValueError(f"{len(ids)} ids for {count} messages")
    return ids  # type: ignore[return-value]


def _tuples(column: _Tuples) -> Column[tuple[str, ...]]:
    if column and type(column[0]) is tuple:
        return column  # type: ignore[return-value]
    return tuple(column)  # type: ignore[arg-type]


def _headers(headers: dict[str, str] | list[dict[str, str]] | None) -> Column[Mapping[str, str]]:
    return NO_HEADERS if headers is None else headers  # type: ignore[return-value]
