"""A body as people read it: JSON and MessagePack indented, text as it is, other bytes as a hex dump; bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from remuda.bus.publishing import bodies
from remuda.model.values.texts import safe

MOST: Final = 64 << 10
"""Characters of a body that are shown, and bytes of one that is decoded for it."""
_DUMPED: Final = 1024
_DEEPEST: Final = 100
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class Readable(NamedTuple):
    """A body for reading. `cut` says whether there is more of it."""

    kind: str
    text: str
    cut: bool


def readable(body: bytes, mime_type: str) -> Readable:
    """Never raises, whatever the bytes are."""
    if bodies.is_msgpack(mime_type) and 0 < len(body) <= MOST:
        try:
            return _bounded("MessagePack", map(_safe_line, _lines(msgspec.msgpack.decode(body), "")))
        except (msgspec.DecodeError, RecursionError, ValueError, TypeError, OverflowError):
            return _dump(body)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _dump(body)
    if "\0" in text:
        return _dump(body)
    text = text.replace("\r\n", "\n")
    if len(text) > MOST:
        return _bounded("text", iter((safe(text[: MOST + 1], lines=True),)))
    indented = _indented(text) if "json" in mime_type.lower() else None
    return _bounded("text" if indented is None else "JSON", iter((safe(indented or text, lines=True),)))


def _indented(text: str) -> str | None:
    """JSON with its lines; None for what is none, or so deep that indenting it would take megabytes."""
    if _depth(text) > _DEEPEST:
        return None
    try:
        # Formatted as text, so that numbers of any length stay exactly as they were written.
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _depth(text: str) -> int:
    depth = most = 0
    for character in _STRING.sub("", text):
        if character in "[{":
            depth += 1
            most = max(most, depth)
        elif character in "]}":
            depth -= 1
    return most


def _bounded(kind: str, parts: Iterator[str]) -> Readable:
    pieces, size = [], 0
    for part in parts:
        pieces.append(part)
        size += len(part)
        if size > MOST:
            break
    text = "".join(pieces)
    return Readable(kind, text[:MOST], len(text) > MOST)


def _lines(value: Any, indent: str) -> Iterator[str]:
    """A decoded value, written like JSON; with bytes as h'…', and keys of any type."""
    if isinstance(value, dict | list | tuple) and value:
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        yield f"{opening}\n"
        inner = f"{indent}  "
        for at, one in enumerate(value):
            yield f"{',' + chr(10) if at else ''}{inner}"
            if isinstance(value, dict):
                yield from _lines(one, inner)
                yield ": "
                yield from _lines(value[one], inner)
            else:
                yield from _lines(one, inner)
        yield f"\n{indent}{closing}"
    else:
        yield _plain(value)


def _safe_line(part: str) -> str:
    return safe(part, lines=True)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, msgspec.msgpack.Ext):
        return f"ext({value.code}, h'{bytes(value.data).hex()}')"
    if isinstance(value, datetime):
        return json.dumps(value.isoformat())
    return json.dumps(value, ensure_ascii=False)


def _dump(body: bytes) -> Readable:
    rows = []
    for at in range(0, min(len(body), _DUMPED), 16):
        row = body[at : at + 16]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        rows.append(f"{at:08x}  {row.hex(' '):47}  {letters}")
    return Readable("bytes", "\n".join(rows), len(body) > _DUMPED)
