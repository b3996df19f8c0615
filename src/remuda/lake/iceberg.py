"""Iceberg's metadata over sealed files: manifests, a list of them for each version, and a catalog in SQLite."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.lake.catalog import TableCatalog
from remuda.lake.catalog import catalog as open_catalog
from remuda.lake.files import GRACE_SECONDS, LEEWAY_SECONDS, TABLES, DataFile, folder_of
from remuda.lake.manifests import (
    Manifest,
    ManifestEntry,
    Status,
    decode_list,
    decode_manifest,
    encode_list,
    encode_manifest,
)
from remuda.lake.metadata import iceberg_schema, last_id, name_mapping
from remuda.model.errors import Conflict
from remuda.spark.lake.writing import replace_file, write_file
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.spark_log import directory, place_text
from remuda.spark.source.tables import SCHEMAS

_log: Final = logging.getLogger("remuda.lake")
FILES_PER_MANIFEST: Final = 50
VERSIONS: Final = 50
"""How many versions are kept at most: time travel goes no further back."""
_METADATA_FILES: Final = 5
_ORPHAN_SECONDS: Final = 3600.0
_END: Final = "remuda.end"
_FORMAT: Final = "remuda.format"
_HINT: Final = "version-hint.text"


def catalog(url: str | os.PathLike[str]) -> Any:
    """The catalog of a log's tables for pyiceberg; `remuda.messages` and `remuda.events` are in it."""
    root = Path(directory(place_text(url)))
    EmbeddedLog(str(root))  # or say what is wrong with it
    return open_catalog(root / TABLES)


class IcebergLakehouse:
    """The Iceberg table of a log's table. What was read of it is kept until another program makes a version."""

    def __init__(self, root: Path, table: str) -> None:
        self._name = table
        self._root = folder_of(root, table)
        self._location = f"file://{self._root}"
        self._folder = self._root / "metadata"
        self._catalog = TableCatalog(root / TABLES)
        self._schema = iceberg_schema(SCHEMAS[table])
        self._schema_text = msgspec.json.encode(self._schema).decode()
        self._loaded: str | None = None
        """The metadata that the catalog names and that was read."""
        self._metadata: dict[str, Any] = {}
        self._manifests: list[Manifest] = []
        self._needs: dict[int, frozenset[str]] = {}
        """The metadata files that each version needs."""

    def refresh(self) -> None:
        named = self._catalog.location(self._name)
        if named is None or named != self._loaded or not self._metadata:
            self._load(named)

    def outdated(self) -> bool:
        return False  # a table of another schema begins anew

    def listed(self) -> frozenset[str]:
        return frozenset(entry.file.path for manifest in self._manifests for entry in manifest.entries if entry.live)

    def end(self) -> int:
        snapshots = self._metadata.get("snapshots")
        return int(snapshots[-1]["summary"].get(_END, 0)) if snapshots else 0

    def commit(self, added: Sequence[DataFile], dropped: Sequence[str], end: int) -> str:
        before = self._metadata or self._begun()
        now = max(time.time_ns() // 1_000_000, before["last-updated-ms"])
        snapshot = uuid.uuid4().int >> 65
        sequence = before["last-sequence-number"] + 1
        manifests = list(self._rewritten(added, frozenset(dropped), snapshot, sequence))
        parent = before.get("current-snapshot-id")
        listing = f"snap-{snapshot}.avro"
        write_file(
            self._folder / listing, encode_list(manifests, f"{self._location}/metadata", snapshot, parent, sequence)
        )
        summary = {
            "operation": "overwrite" if dropped else "append",
            "added-data-files": str(len(added)),
            "deleted-data-files": str(len(dropped)),
            "total-data-files": str(sum(len(manifest.live) for manifest in manifests)),
            "total-records": str(sum(entry.file.rows for one in manifests for entry in one.live)),
            _END: str(end),
        }
        made = {
            "snapshot-id": snapshot,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "sequence-number": sequence,
            "timestamp-ms": now,
            "manifest-list": f"{self._location}/metadata/{listing}",
            "summary": summary,
            "schema-id": 0,
        }
        self._move(before, _readable([*before.get("snapshots", ()), made], now)[-VERSIONS:], now)
        self._manifests = manifests
        self._needs[snapshot] = frozenset([listing, *(manifest.name for manifest in manifests)])
        self._forget()
        return self.version()

    def version(self) -> str:
        return str(self._metadata.get("current-snapshot-id", ""))

    def version_at(self, end: int) -> str | None:
        for snapshot in self._metadata.get("snapshots", ()):
            if int(snapshot["summary"].get(_END, -1)) >= end:
                return str(snapshot["snapshot-id"])
        return None

    def _rewritten(
        self, added: Sequence[DataFile], dropped: frozenset[str], snapshot: int, sequence: int
    ) -> Iterator[Manifest]:
        """The manifests of the next version. One is rewritten if a file leaves it, or a new one fits into it."""
        fresh = [ManifestEntry(file, Status.ADDED, snapshot, sequence) for file in added]
        old = [manifest for manifest in self._manifests if manifest.live]
        files = sum(len(manifest.live) for manifest in old)
        sparse = len(old) > 2 * (files // FILES_PER_MANIFEST) + 10
        if sparse:
            fresh = [
                entry.kept() for manifest in old for entry in manifest.live if entry.file.path not in dropped
            ] + fresh
            gone = [entry.dropped(snapshot) for one in old for entry in one.live if entry.file.path in dropped]
            old, fresh = [], gone + fresh
        for at, manifest in enumerate(old):
            goes = any(entry.file.path in dropped for entry in manifest.live)
            room = FILES_PER_MANIFEST - len(manifest.live) if at == len(old) - 1 else 0
            if not goes and not (fresh and room > 0):
                yield manifest
                continue
            kept = [entry.dropped(snapshot) if entry.file.path in dropped else entry.kept() for entry in manifest.live]
            taken, fresh = fresh[: max(room, 0)], fresh[max(room, 0) :]
            yield self._written(kept + taken, snapshot, sequence)
        for at in range(0, len(fresh), FILES_PER_MANIFEST):
            yield self._written(fresh[at : at + FILES_PER_MANIFEST], snapshot, sequence)

    def _written(self, entries: Sequence[ManifestEntry], snapshot: int, sequence: int) -> Manifest:
        name = f"{uuid.uuid4().hex}-m0.avro"
        data = encode_manifest(entries, self._location, self._schema_text)
        write_file(self._folder / name, data)
        return Manifest(name, len(data), snapshot, sequence, tuple(entries))

    def expire(self) -> None:
        known = self._metadata.get("snapshots", [])
        now = time.time_ns() // 1_000_000
        kept = _readable(known, now)
        if len(kept) < len(known):
            self._move(self._metadata, kept, max(now, self._metadata["last-updated-ms"]))
            self._forget()

    def _move(self, before: dict[str, Any], kept: list[dict[str, Any]], now: int) -> None:
        """Make the last of some versions the newest."""
        newest = kept[-1]
        past = [*before.get("metadata-log", ())]
        if self._loaded is not None and self._metadata:
            past.append({"timestamp-ms": before["last-updated-ms"], "metadata-file": self._loaded})
        version = _version_of(self._loaded) + 1
        after = {
            **before,
            "last-sequence-number": newest["sequence-number"],
            "last-updated-ms": now,
            "current-snapshot-id": newest["snapshot-id"],
            "refs": {"main": {"snapshot-id": newest["snapshot-id"], "type": "branch"}},
            "snapshots": kept,
            "snapshot-log": [{"timestamp-ms": one["timestamp-ms"], "snapshot-id": one["snapshot-id"]} for one in kept],
            "metadata-log": past[-_METADATA_FILES:],
        }
        name = f"v{version}.gz.metadata.json"
        with contextlib.suppress(FileNotFoundError):
            (self._folder / name).unlink()  # left by a process that was killed before the catalog knew of it
        write_file(self._folder / name, gzip.compress(msgspec.json.encode(after), mtime=0))
        location = f"{self._location}/metadata/{name}"
        if not self._catalog.move(self._name, self._loaded, location):
            self._loaded, self._metadata = None, {}
            raise Conflict(f"another program has changed the table at {str(self._root)!r}; publish again")
        replace_file(self._folder / _HINT, str(version).encode(), sync=False)
        self._loaded, self._metadata = location, after
        for old in past[:-_METADATA_FILES]:
            (self._folder / _base(old["metadata-file"])).unlink(missing_ok=True)

    def _forget(self) -> None:
        """Remove the files that no version needs any more."""
        kept = {snapshot["snapshot-id"] for snapshot in self._metadata["snapshots"]}
        past = [snapshot for snapshot in self._needs if snapshot not in kept]
        if not past:
            return
        gone = frozenset[str]().union(*(self._needs.pop(snapshot) for snapshot in past))
        for name in gone.difference(*self._needs.values()):
            (self._folder / name).unlink(missing_ok=True)

    def _load(self, named: str | None) -> None:
        """Read the newest version. One that cannot be read, or that belongs to another place, is not continued: the
        table is a view of the log, and starts over."""
        self._loaded, self._metadata, self._manifests, self._needs = named, {}, [], {}
        if named is None:
            return
        try:
            metadata = self._read_metadata(named)
            needs = {one["snapshot-id"]: self._read_list(one) for one in metadata.get("snapshots", ())}
            rows = needs.get(metadata.get("current-snapshot-id"), [])
            self._manifests = [self._read_manifest(row) for row in rows]
            self._needs = {
                snapshot: frozenset([f"snap-{snapshot}.avro", *(_base(row["manifest_path"]) for row in listed)])
                for snapshot, listed in needs.items()
            }
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, StopIteration) as error:
            _log.warning(
                "the Iceberg table at %r starts over, without its earlier versions: %s", str(self._root), error
            )
            self._manifests, self._needs = [], {}
            return
        self._metadata = metadata
        self._sweep()

    def _read_metadata(self, named: str) -> dict[str, Any]:
        data = (self._folder / _base(named)).read_bytes()
        unpacked = gzip.decompress(data) if named.endswith(".gz.metadata.json") else data
        metadata: dict[str, Any] = msgspec.json.decode(unpacked, type=dict[str, Any])
        current = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
        known = metadata["properties"].get(_FORMAT) == "1" and metadata["location"] == self._location
        if not known or current["fields"] != self._schema["fields"]:
            raise ValueError("another table")
        return metadata

    def _read_list(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        return decode_list((self._folder / _base(snapshot["manifest-list"])).read_bytes())

    def _read_manifest(self, row: dict[str, Any]) -> Manifest:
        name, sequence = _base(row["manifest_path"]), row["sequence_number"]
        data = (self._folder / name).read_bytes()
        if len(data) != row["manifest_length"]:
            raise ValueError(f"{name} is not whole")
        entries = decode_manifest(data, self._location, sequence)
        return Manifest(name, row["manifest_length"], row["added_snapshot_id"], sequence, entries)

    def _sweep(self) -> None:
        """Remove what a process left behind that was killed before the catalog knew of its version."""
        needed = frozenset[str]().union(*self._needs.values())
        limit = time.time() - _ORPHAN_SECONDS
        for entry in os.scandir(self._folder):
            if entry.name.endswith((".avro", ".tmp")) and entry.name not in needed and entry.stat().st_mtime < limit:
                os.unlink(entry.path)

    def _begun(self) -> dict[str, Any]:
        """The metadata of a table without any version."""
        schema = SCHEMAS[self._name]
        return {
            "format-version": 2,
            "table-uuid": str(uuid.uuid4()),
            "location": self._location,
            "last-sequence-number": 0,
            "last-updated-ms": time.time_ns() // 1_000_000,
            "last-column-id": last_id(schema),
            "current-schema-id": 0,
            "schemas": [self._schema],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {
                _FORMAT: "1",
                "schema.name-mapping.default": msgspec.json.encode(name_mapping(schema)).decode(),
                "write.metadata.compression-codec": "gzip",
            },
        }


def _readable(snapshots: list[dict[str, Any]], now: int) -> list[dict[str, Any]]:
    """The versions whose files are all there: those before one that dropped some are not, once the links have gone."""
    limit = now - (GRACE_SECONDS - LEEWAY_SECONDS) * 1000
    first = 0
    for at, one in enumerate(snapshots):
        if one["timestamp-ms"] <= limit and int(one["summary"].get("deleted-data-files", 0)):
            first = at
    return snapshots[first:]


def _base(location: str) -> str:
    return location.rpartition("/")[2]


def _version_of(named: str | None) -> int:
    """The number in the name of a metadata file."""
    text = _base(named or "").partition(".")[0].removeprefix("v").partition("-")[0]
    return int(text) if text.isdigit() else 0
