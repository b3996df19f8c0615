"""Avro files, as far as Iceberg's manifests need them: metadata, then compressed records of one schema."""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_WINDOW: Final = -15
"""Deflate without zlib's header."""

Schema = Any
"""As Avro's JSON has it: the name of a type, a record, an array, or a choice of null and one other."""


def encode_file(schema: Schema, records: Iterable[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    out, rows, count = bytearray(_MAGIC), bytearray(), 0
    for record in records:
        _write(rows, schema, record)
        count += 1
    compressor = zlib.compressobj(wbits=_WINDOW)
    block = compressor.compress(rows) + compressor.flush()
    header = {**metadata, "avro.codec": "deflate", "avro.schema": json.dumps(schema, separators=(",", ":"))}
    sync = os.urandom(_SYNC_BYTES)
    _write_long(out, len(header))
    for key, value in header.items():
        _write_bytes(out, key.encode())
        _write_bytes(out, value.encode())
    _write_long(out, 0)
    out += sync
    if count:
        _write_long(out, count)
        _write_bytes(out, block)
        out += sync
    return bytes(out)


def decode_file(data: bytes) -> list[dict[str, Any]]:
    """The records of a file, whoever wrote it; raises `ValueError` where it is not whole."""
    source = io.BytesIO(data)
    try:
        if source.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is not an Avro file")
        metadata: dict[str, bytes] = {}
        while count := _read_long(source):
            if count < 0:
                _read_long(source)
            for _ in range(abs(count)):
                key = _read_bytes(source).decode()
                metadata[key] = _read_bytes(source)
        schema = json.loads(metadata["avro.schema"])
        codec = metadata.get("avro.codec", b"null")
        sync = source.read(_SYNC_BYTES)
        if len(sync) < _SYNC_BYTES:
            raise ValueError("it ends too early")
        records: list[dict[str, Any]] = []
        while source.tell() < len(data):
            count = _read_long(source)
            block = _read_bytes(source)
            if source.read(_SYNC_BYTES) != sync:
                raise ValueError("a block of it does not end where it should")
            rows = io.BytesIO(_unpacked(block, codec))
            records += [_read(rows, schema) for _ in range(count)]
        return records
    except (IndexError, KeyError, zlib.error) as error:
        raise ValueError(f"it cannot be read: {error}") from error


def _unpacked(block: bytes, codec: bytes) -> bytes:
    if codec == b"null":
        return block
    if codec == b"deflate":
        return zlib.decompress(block, wbits=_WINDOW)
    raise ValueError(f"it is compressed by {codec.decode()}, which Remuda does not write")


def _write(out: bytearray, schema: Schema, value: Any) -> None:
    match schema:
        case list():
            place = next(at for at, kind in enumerate(schema) if (kind == "null") == (value is None))
            _write_long(out, place)
            _write(out, schema[place], value)
        case {"type": "record", "fields": fields}:
            for field in fields:
                _write(out, field["type"], value[field["name"]])
        case {"type": "array", "items": items}:
            if value:
                _write_long(out, len(value))
                for one in value:
                    _write(out, items, one)
            _write_long(out, 0)
        case "null":
            pass
        case "int" | "long":
            _write_long(out, value)
        case "string":
            _write_bytes(out, value.encode())
        case "bytes":
            _write_bytes(out, value)
        case _:
            raise ValueError(f"no manifest has values of type {schema!r}")


def _read(source: io.BytesIO, schema: Schema) -> Any:
    match schema:
        case list():
            return _read(source, schema[_read_long(source)])
        case {"type": "record", "fields": fields}:
            return {field["name"]: _read(source, field["type"]) for field in fields}
        case {"type": "array", "items": items}:
            return [one for count in _counts(source) for one in (_read(source, items) for _ in range(count))]
        case {"type": "map", "values": values}:
            pairs = [(_read_bytes(source).decode(), _read(source, values)) for n in _counts(source) for _ in range(n)]
            return dict(pairs)
        case {"type": "fixed", "size": size}:
            return source.read(size)
        case {"type": kind}:
            return _read(source, kind)
        case "null":
            return None
        case "boolean":
            return source.read(1) != b"\0"
        case "int" | "long":
            return _read_long(source)
        case "string":
            return _read_bytes(source).decode()
        case "bytes":
            return _read_bytes(source)
        case "float" | "double":
            return source.read(4 if schema == "float" else 8)
        case _:
            raise ValueError(f"no manifest has values of type {schema!r}")


def _counts(source: io.BytesIO) -> Iterable[int]:
    """How many items each block of an array or a map has."""
    while count := _read_long(source):
        if count < 0:
            _read_long(source)
        yield abs(count)


def _write_long(out: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _read_long(source: io.BytesIO) -> int:
    result = shift = 0
    while True:
        byte = source.read(1)[0]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1)
        shift += 7


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _read_bytes(source: io.BytesIO) -> bytes:
    length = _read_long(source)
    value = source.read(length)
    if length < 0 or len(value) < length:
        raise ValueError("it ends too early")
    return value
