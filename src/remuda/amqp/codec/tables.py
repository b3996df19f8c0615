"""Field tables with every type RabbitMQ knows. What was decoded encodes to the same bytes again.

Python's own types stand for the common ones: `bool` t, `int` I (l beyond 32 bits), `float` d, `str` S, `bytes` x,
`None` V, `dict` F, `list` A. The others are small subclasses of these: they can be used as such and keep their type on
the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Any, Final, NamedTuple

from remuda.amqp.errors import SYNTAX_ERROR, ProtocolError
from remuda.model.errors import InvalidMessage

Table = dict[str, Any]

MAX_DEPTH: Final = 100
"""How deep tables and arrays may be nested."""


class Int8(int):
    """A signed octet, b."""


class UInt8(int):
    """An octet, B."""


class Int16(int):
    """A signed short, s."""


class UInt16(int):
    """A short, u."""


class UInt32(int):
    """An unsigned long, i."""


class Int64(int):
    """A signed long-long, l, also where 32 bits would do."""


class UInt64(int):
    """An unsigned long-long, L."""


class Timestamp(int):
    """Seconds since 1970, T."""

    def datetime(self) -> datetime:
        return datetime.fromtimestamp(self, UTC)


class Float32(float):
    """A short float, f."""


class RawText(bytes):
    """A long string, S, that is not UTF-8."""


class Scaled(NamedTuple):
    """A decimal, D: `value` divided by ten to the power of `scale`."""

    scale: int
    value: int

    def decimal(self) -> Decimal:
        return Decimal(self.value).scaleb(-self.scale)

    @property
    def text(self) -> str:
        """Its digits, without an exponent."""
        return format(self.decimal(), "f")


class FieldEntry(NamedTuple):
    """Where one entry of an encoded table lies: key, tag, and the offsets of its beginning, its value and its end."""

    key: bytes
    tag: int
    start: int
    value: int
    end: int


_LENGTH: Final = Struct(">I")
_DECIMAL: Final = Struct(">Bi")

_FIXED: Final[dict[int, Struct]] = {
    ord(tag): Struct(f">{layout}")
    for tag, layout in {
        "t": "B", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "Q",
        "f": "f", "d": "d", "T": "Q", "D": "Bi", "V": "",
    }.items()
}  # fmt: skip
_LENGTH_PREFIXED: Final = frozenset(b"SxFA")
_SUBCLASSES: Final[dict[int, type]] = {
    ord("b"): Int8, ord("B"): UInt8, ord("s"): Int16, ord("u"): UInt16, ord("i"): UInt32, ord("L"): UInt64,
    ord("f"): Float32, ord("T"): Timestamp,
}  # fmt: skip
_TAG_OF: Final[dict[type, int]] = {kind: tag for tag, kind in _SUBCLASSES.items()}
_TAG_OF[Int64] = ord("l")
_TRUE, _FALSE, _VOID = b"t\x01", b"t\x00", b"V"


def decode_table(raw: bytes) -> Table:
    """A table from its content, without the length in front."""
    return _table(raw, 0, len(raw), 0)


def encode_table(table: Mapping[str, Any]) -> bytes:
    """The content of a table, without the length in front."""
    out: list[bytes] = []
    _put_table(out, table, 0)
    return b"".join(out)


def scan(raw: bytes) -> Iterator[FieldEntry]:
    """The entries of an encoded table, without decoding their values."""
    position, end = 0, len(raw)
    while position < end:
        start = position
        position += 1 + raw[position]
        key = raw[start + 1 : position]
        if position >= end:
            raise _short()
        tag = raw[position]
        position += 1
        after = position + _size(raw, tag, position, end)
        if after > end:
            raise _short()
        yield FieldEntry(key, tag, start, position, after)
        position = after


def with_entries(raw: bytes, entries: Mapping[str, Any], *, without: frozenset[str] = frozenset()) -> bytes:
    """An encoded table with `entries` set and `without` removed; all others stay as they are, byte for byte."""
    gone = {name.encode() for name in (*entries, *without)}
    kept = b"".join(raw[entry.start : entry.end] for entry in scan(raw) if entry.key not in gone)
    return kept + encode_table(entries)


def entry_value(raw: bytes, entry: FieldEntry) -> Any:
    """The decoded value of one entry."""
    return _value(raw, entry.tag, entry.value, entry.end, 0)[0]


def _size(raw: bytes, tag: int, position: int, end: int) -> int:
    if tag in _LENGTH_PREFIXED:
        if position + 4 > end:
            raise _short()
        return 4 + int.from_bytes(raw[position : position + 4], "big")
    fixed = _FIXED.get(tag)
    if fixed is None:
        raise ProtocolError(SYNTAX_ERROR, f"a table holds a value of the unknown type {chr(tag)!r}")
    return fixed.size


def _table(raw: bytes, position: int, end: int, depth: int) -> Table:
    table: Table = {}
    while position < end:
        key_end = position + 1 + raw[position]
        if key_end >= end:
            raise _short()
        key = raw[position + 1 : key_end].decode("utf-8", "surrogateescape")
        table[key], position = _value(raw, raw[key_end], key_end + 1, end, depth)
    return table


def _value(raw: bytes, tag: int, position: int, end: int, depth: int) -> tuple[Any, int]:
    after = position + _size(raw, tag, position, end)
    if after > end:
        raise _short()
    if tag == 83:  # S
        text = raw[position + 4 : after]
        try:
            return text.decode(), after
        except UnicodeDecodeError:
            return RawText(text), after
    if tag == 120:  # x
        return raw[position + 4 : after], after
    if tag in (70, 65):  # F, A
        if depth >= MAX_DEPTH:
            raise ProtocolError(SYNTAX_ERROR, f"tables are nested more than {MAX_DEPTH} deep")
        if tag == 70:
            return _table(raw, position + 4, after, depth + 1), after
        return _array(raw, position + 4, after, depth + 1), after
    fields = _FIXED[tag].unpack_from(raw, position)
    if tag == 86:  # V
        return None, after
    if tag == 68:  # D
        return Scaled(*fields), after
    (number,) = fields
    if tag == 116:  # t
        return number != 0, after
    if tag in (73, 100):  # I, d
        return number, after
    if tag == 108:  # l
        return (Int64(number) if -0x80000000 <= number <= 0x7FFFFFFF else number), after
    return _SUBCLASSES[tag](number), after


def _array(raw: bytes, position: int, end: int, depth: int) -> list[Any]:
    items: list[Any] = []
    while position < end:
        item, position = _value(raw, raw[position], position + 1, end, depth)
        items.append(item)
    return items


def _put_table(out: list[bytes], table: Mapping[str, Any], depth: int) -> None:
    for key, value in table.items():
        if not isinstance(key, str):
            raise InvalidMessage(f"the keys of a header table must be strings, not {key!r}")
        name = _encoded(key)
        if len(name) > 255:
            raise InvalidMessage(f"the header {key[:40]!r}… has a name of {len(name)} bytes; 255 are allowed")
        out.append(bytes((len(name),)) + name)
        _put(out, value, depth)


def _put(out: list[bytes], value: Any, depth: int) -> None:
    if isinstance(value, str):
        text = _encoded(value)
        out.append(b"S" + _LENGTH.pack(len(text)) + text)
    elif isinstance(value, bool):
        out.append(_TRUE if value else _FALSE)
    elif (tag := _TAG_OF.get(type(value))) is not None:
        out.append(_packed(tag, value))
    elif isinstance(value, int):
        out.append(_packed(73 if -0x80000000 <= value <= 0x7FFFFFFF else 108, value))
    elif isinstance(value, float):
        out.append(_packed(100, value))
    elif isinstance(value, RawText):
        out.append(b"S" + _LENGTH.pack(len(value)) + value)
    elif isinstance(value, bytes | bytearray | memoryview):
        out.append(b"x" + _LENGTH.pack(len(value)) + bytes(value))
    elif value is None:
        out.append(_VOID)
    elif isinstance(value, Scaled):
        out.append(_scaled(value))
    elif isinstance(value, Mapping):
        _put_nested(out, b"F", value, depth)
    elif isinstance(value, list | tuple):
        _put_nested(out, b"A", value, depth)
    elif isinstance(value, datetime):
        out.append(_packed(84, int(value.timestamp())))
    elif isinstance(value, Decimal):
        out.append(_scaled(_from_decimal(value)))
    else:
        raise InvalidMessage(f"a header cannot hold a {type(value).__name__}")


def _put_nested(out: list[bytes], tag: bytes, value: Any, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise InvalidMessage(f"headers are nested more than {MAX_DEPTH} deep")
    inner: list[bytes] = []
    if isinstance(value, Mapping):
        _put_table(inner, value, depth + 1)
    else:
        for item in value:
            _put(inner, item, depth + 1)
    content = b"".join(inner)
    out.append(tag + _LENGTH.pack(len(content)) + content)


def _packed(tag: int, value: Any) -> bytes:
    try:
        return bytes((tag,)) + _FIXED[tag].pack(value)
    except (struct.error, OverflowError):
        raise InvalidMessage(f"a header cannot hold the number {value!r} as AMQP's type {chr(tag)!r}") from None


def _scaled(value: Scaled) -> bytes:
    try:
        return b"D" + _DECIMAL.pack(*value)
    except struct.error:
        raise InvalidMessage(f"a header cannot hold the decimal {value!r}") from None


def _from_decimal(value: Decimal) -> Scaled:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidMessage(f"a header cannot hold the decimal {value}")
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    return Scaled(max(-exponent, 0), number)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidMessage(f"{text[:40]!r} cannot be written as UTF-8") from None


def _short() -> ProtocolError:
    return ProtocolError(SYNTAX_ERROR, "a table ends in the middle of an entry")
