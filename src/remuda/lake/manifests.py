"""Iceberg's manifests: which files a table has, in lists of a few dozen, and the list of these lists.

Only what a reader needs is written: of statistics the bounds of the number that rows are ordered by, of optional fields
none. Most of a small manifest would be the description of fields that are not there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

from remuda.lake.avro import decode_file, encode_file
from remuda.lake.files import DataFile

NUMBER_ID: Final = 1
"""The field by which rows are ordered is the first of both tables."""
_LONG: Final = struct.Struct("<q")


class Status(IntEnum):
    EXISTING = 0
    ADDED = 1
    DELETED = 2


class ManifestEntry(msgspec.Struct, frozen=True):
    """A file in a manifest, and the version that brought it or took it away."""

    file: DataFile
    status: int
    snapshot: int
    sequence: int

    @property
    def live(self) -> bool:
        return self.status != Status.DELETED

    def kept(self) -> ManifestEntry:
        return msgspec.structs.replace(self, status=Status.EXISTING)

    def dropped(self, snapshot: int) -> ManifestEntry:
        return msgspec.structs.replace(self, status=Status.DELETED, snapshot=snapshot)


class Manifest(msgspec.Struct, frozen=True):
    """A manifest as the list of a version has it."""

    name: str
    size: int
    snapshot: int
    sequence: int
    entries: tuple[ManifestEntry, ...]

    @property
    def live(self) -> tuple[ManifestEntry, ...]:
        return tuple(entry for entry in self.entries if entry.live)


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


def _field(name: str, kind: Any, number: int) -> dict[str, Any]:
    optional = {"default": None} if isinstance(kind, list) else {}
    return {"name": name, "type": kind, **optional, "field-id": number}


def _bounds(name: str, number: int, key: int) -> dict[str, Any]:
    pair = {
        "type": "record",
        "name": f"k{key}_v{key + 1}",
        "fields": [_field("key", "int", key), _field("value", "bytes", key + 1)],
    }
    return _field(name, _optional({"type": "array", "items": pair, "logicalType": "map"}), number)


_ENTRY: Final = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _field("status", "int", 0),
        _field("snapshot_id", _optional("long"), 1),
        _field("sequence_number", _optional("long"), 3),
        _field("file_sequence_number", _optional("long"), 4),
        _field(
            "data_file",
            {
                "type": "record",
                "name": "r2",
                "fields": [
                    _field("content", "int", 134),
                    _field("file_path", "string", 100),
                    _field("file_format", "string", 101),
                    _field("partition", {"type": "record", "name": "r102", "fields": []}, 102),
                    _field("record_count", "long", 103),
                    _field("file_size_in_bytes", "long", 104),
                    _bounds("lower_bounds", 125, 126),
                    _bounds("upper_bounds", 128, 129),
                ],
            },
            2,
        ),
    ],
}
_LISTED: Final = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", "string", 500),
        _field("manifest_length", "long", 501),
        _field("partition_spec_id", "int", 502),
        _field("content", "int", 517),
        _field("sequence_number", "long", 515),
        _field("min_sequence_number", "long", 516),
        _field("added_snapshot_id", "long", 503),
        _field("added_files_count", "int", 504),
        _field("existing_files_count", "int", 505),
        _field("deleted_files_count", "int", 506),
        _field("added_rows_count", "long", 512),
        _field("existing_rows_count", "long", 513),
        _field("deleted_rows_count", "long", 514),
    ],
}


def encode_manifest(entries: Iterable[ManifestEntry], location: str, schema: str) -> bytes:
    """With the table's `schema` as JSON."""
    metadata = {
        "schema": schema,
        "schema-id": "0",
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "data",
    }
    return encode_file(_ENTRY, [_written(entry, location) for entry in entries], metadata)


def decode_manifest(data: bytes, location: str, sequence: int) -> tuple[ManifestEntry, ...]:
    return tuple(_read(record, location, sequence) for record in decode_file(data))


def encode_list(manifests: Sequence[Manifest], folder: str, snapshot: int, parent: int | None, sequence: int) -> bytes:
    metadata = {
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(sequence),
        "format-version": "2",
    }
    return encode_file(_LISTED, [_listed(manifest, folder) for manifest in manifests], metadata)


def decode_list(data: bytes) -> list[dict[str, Any]]:
    return decode_file(data)


def _written(entry: ManifestEntry, location: str) -> dict[str, Any]:
    file = entry.file
    inherited = entry.status == Status.ADDED
    return {
        "status": int(entry.status),
        "snapshot_id": entry.snapshot,
        "sequence_number": None if inherited else entry.sequence,
        "file_sequence_number": None if inherited else entry.sequence,
        "data_file": {
            "content": 0,
            "file_path": f"{location}/{file.path}",
            "file_format": "PARQUET",
            "partition": {},
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "lower_bounds": [{"key": NUMBER_ID, "value": _LONG.pack(file.first)}],
            "upper_bounds": [{"key": NUMBER_ID, "value": _LONG.pack(file.last)}],
        },
    }


def _read(record: dict[str, Any], location: str, sequence: int) -> ManifestEntry:
    file = record["data_file"]
    own = record["sequence_number"]
    return ManifestEntry(
        DataFile(
            path=file["file_path"].removeprefix(f"{location}/"),
            first=_bound(file.get("lower_bounds")),
            last=_bound(file.get("upper_bounds")),
            rows=file["record_count"],
            size=file["file_size_in_bytes"],
            modified=0,
        ),
        record["status"],
        record["snapshot_id"],
        sequence if own is None else own,
    )


def _bound(pairs: list[dict[str, Any]] | None) -> int:
    for pair in pairs or ():
        if pair["key"] == NUMBER_ID:
            value: int = _LONG.unpack(pair["value"])[0]
            return value
    raise ValueError("a file in it has no bounds")


def _listed(manifest: Manifest, folder: str) -> dict[str, Any]:
    by = {status: [one for one in manifest.entries if one.status == status] for status in Status}
    return {
        "manifest_path": f"{folder}/{manifest.name}",
        "manifest_length": manifest.size,
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": manifest.sequence,
        "min_sequence_number": min(entry.sequence for entry in manifest.entries),
        "added_snapshot_id": manifest.snapshot,
        "added_files_count": len(by[Status.ADDED]),
        "existing_files_count": len(by[Status.EXISTING]),
        "deleted_files_count": len(by[Status.DELETED]),
        "added_rows_count": sum(one.file.rows for one in by[Status.ADDED]),
        "existing_rows_count": sum(one.file.rows for one in by[Status.EXISTING]),
        "deleted_rows_count": sum(one.file.rows for one in by[Status.DELETED]),
    }
