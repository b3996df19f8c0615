"""The properties of a message: decoded to be read, raw to be passed on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

import msgspec

from remuda.amqp.codec.tables import Table, Timestamp, decode_table, encode_table, with_entries
from remuda.amqp.errors import SYNTAX_ERROR, ProtocolError
from remuda.model.errors import InvalidMessage

PERSISTENT: Final = 2

_HEADERS: Final = 0x2000
_OCTETS: Final = frozenset({"delivery_mode", "priority"})
_FLAGS: Final = Struct(">H")
_LENGTH: Final = Struct(">I")
_TIME: Final = Struct(">Q")


class Properties(msgspec.Struct, frozen=True, kw_only=True):
    """AMQP's basic properties. Those that are None are not sent."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_NAMES: Final = Properties.__struct_fields__
_BITS: Final = {name: 1 << (15 - index) for index, name in enumerate(_NAMES)}
_KNOWN: Final = sum(_BITS.values())
EMPTY: Final = b"\x00\x00"
"""The encoded properties of a message that has none."""


def encode_properties(properties: Properties) -> bytes:
    """Flags and values, as they stand in a content header."""
    flags, out = 0, [b""]
    for name in _NAMES:
        value = getattr(properties, name)
        if value is None:
            continue
        flags |= _BITS[name]
        if name == "headers":
            table = encode_table(_checked(name, value, Mapping))
            out.append(_LENGTH.pack(len(table)) + table)
        elif name in _OCTETS:
            out.append(_number(name, value, 0xFF).to_bytes(1, "big"))
        elif name == "timestamp":
            out.append(_TIME.pack(_number(name, value, 0xFFFFFFFFFFFFFFFF)))
        else:
            text = _checked(name, value, str).encode("utf-8", "surrogateescape")
            if len(text) > 255:
                raise InvalidMessage(f"{name} has {len(text)} bytes; 255 are allowed")
            out.append(bytes((len(text),)) + text)
    out[0] = _FLAGS.pack(flags)
    return b"".join(out)


def decode_properties(raw: bytes) -> Properties:
    """The decoded values. Malformed bytes raise a `ProtocolError`."""
    values: dict[str, Any] = {}
    for name, start, end in _fields(raw):
        if name == "headers":
            values[name] = decode_table(raw[start + 4 : end])
        elif name in _OCTETS:
            values[name] = raw[start]
        elif name == "timestamp":
            values[name] = Timestamp(_TIME.unpack_from(raw, start)[0])
        else:
            values[name] = raw[start + 1 : end].decode("utf-8", "surrogateescape")
    return Properties(**values)


def raw_headers(raw: bytes) -> bytes:
    """The encoded header table inside raw properties; empty if there is none."""
    for name, start, end in _fields(raw):
        if name == "headers":
            return raw[start + 4 : end]
    return b""


def with_headers(raw: bytes, entries: Mapping[str, Any], *, without: frozenset[str] = frozenset()) -> bytes:
    """Raw properties with these headers set and those removed; everything else stays as it is, byte for byte."""
    table = with_entries(raw_headers(raw), entries, without=without)
    flags = _flags(raw)
    position = _headers_at(raw, flags)
    old_end = position + 4 + _LENGTH.unpack_from(raw, position)[0] if flags & _HEADERS else position
    return _FLAGS.pack(flags | _HEADERS) + raw[2:position] + _LENGTH.pack(len(table)) + table + raw[old_end:]


def without_property(raw: bytes, name: str) -> bytes:
    """Raw properties without this one; the others stay as they are, byte for byte."""
    for found, start, end in _fields(raw):
        if found == name:
            return _FLAGS.pack(_flags(raw) & ~_BITS[name]) + raw[2:start] + raw[end:]
    return raw


def with_property(raw: bytes, name: str, value: Any) -> bytes:
    """Raw properties with this one set; the others stay as they are, byte for byte."""
    kept = without_property(raw, name)
    encoded = encode_properties(Properties(**{name: value}))[2:]
    position = len(kept)
    for found, start, _ in _fields(kept):
        if _BITS[found] < _BITS[name]:
            position = start
            break
    return _FLAGS.pack(_flags(kept) | _BITS[name]) + kept[2:position] + encoded + kept[position:]


def _headers_at(raw: bytes, flags: int) -> int:
    """Where the header table is or would be: behind content_type and content_encoding."""
    position = 2
    for bit in (_BITS["content_type"], _BITS["content_encoding"]):
        if flags & bit:
            position += 1 + raw[position]
    return position


def _flags(raw: bytes) -> int:
    if len(raw) < 2:
        raise ProtocolError(SYNTAX_ERROR, "a content header has no property flags")
    flags: int = _FLAGS.unpack_from(raw)[0]
    if flags & ~_KNOWN:
        raise ProtocolError(SYNTAX_ERROR, f"a content header has unknown property flags {flags:#06x}")
    return flags


def _fields(raw: bytes) -> list[tuple[str, int, int]]:
    """Name, start and end of every property that is there."""
    flags, position, found = _flags(raw), 2, []
    for name, bit in _BITS.items():
        if not flags & bit:
            continue
        start = position
        if name == "headers":
            if position + 4 > len(raw):
                raise _short()
            position += 4 + _LENGTH.unpack_from(raw, position)[0]
        elif name in _OCTETS:
            position += 1
        elif name == "timestamp":
            position += 8
        else:
            if position >= len(raw):
                raise _short()
            position += 1 + raw[position]
        if position > len(raw):
            raise _short()
        found.append((name, start, position))
    if position != len(raw):
        raise ProtocolError(SYNTAX_ERROR, "a content header is longer than its properties")
    return found


def _number(name: str, value: object, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise InvalidMessage(f"{name} must be a whole number from 0 to {limit}, not {value!r}")
    return value


def _checked(name: str, value: object, kind: type) -> Any:
    if not isinstance(value, kind):
        raise InvalidMessage(f"{name} must be a {kind.__name__}, not {value!r}")
    return value


def _short() -> ProtocolError:
    return ProtocolError(SYNTAX_ERROR, "a content header ends in the middle of its properties")
