"""Delta's log over sealed files: one small JSON file for each version, and now and then a checkpoint of them all."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from remuda.lake.files import GRACE_SECONDS, LEEWAY_SECONDS, DataFile, folder_of
from remuda.lake.metadata import delta_schema
from remuda.lake.writing import create_file, replace_file
from remuda.model.errors import Conflict, StorageError
from remuda.spark.tables import NUMBER, SCHEMAS

CHECKPOINT_EVERY: Final = 100
_DAY: Final = 24 * 3600 * 1000
_END: Final = "remuda.end"
_SETTINGS: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    # Else delta-rs takes the columns without statistics for null: a filter on one of them would find no row.
    "delta.dataSkippingNumIndexedCols": "1",
}
_PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}
_LAST: Final = "_last_checkpoint"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_CHECKPOINT: Final = pa.schema(
    [
        ("protocol", pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                ]
            ),
        ),
        (
            "remove",
            pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
        ),
    ]
)

Action = dict[str, Any]


class DeltaLakehouse:
    """The Delta table of a log's table. What was read of it is kept until another program makes a version."""

    def __init__(self, root: Path, table: str) -> None:
        self._log = folder_of(root, table) / "_delta_log"
        self._table = table
        self._number = NUMBER[table]
        self._columns = delta_schema(SCHEMAS[table])
        self._schema_text = msgspec.json.encode(self._columns).decode()
        self._version = -1
        self._metadata: Action = {}
        self._files: dict[str, Action] = {}
        self._removed: dict[str, Action] = {}
        self._end = 0

    def refresh(self) -> None:
        if self._version < 0 or not self._commit(self._version).exists() or self._commit(self._version + 1).exists():
            self._load()

    def outdated(self) -> bool:
        if self._version < 0:
            return False
        settings: dict[str, str] = self._metadata["configuration"]
        columns: Action = msgspec.json.decode(self._metadata["schemaString"])
        return columns != self._columns or {**settings, **_SETTINGS} != settings

    def listed(self) -> frozenset[str]:
        return frozenset(self._files)

    def end(self) -> int:
        return self._end

    def commit(self, added: Sequence[DataFile], dropped: Sequence[str], end: int) -> str:
        now = time.time_ns() // 1_000_000
        actions: list[Action] = [{"commitInfo": _commit_info(now, end)}]
        if self._version < 0:
            actions += [{"protocol": _PROTOCOL}, {"metaData": self._new_metadata(now)}]
        elif self.outdated():
            settings = {**self._metadata["configuration"], **_SETTINGS}
            actions.append(
                {"metaData": {**self._metadata, "schemaString": self._schema_text, "configuration": settings}}
            )
        actions += [{"remove": {"path": path, "deletionTimestamp": now, "dataChange": True}} for path in dropped]
        actions += [{"add": self._add(file)} for file in added]
        if not create_file(self._commit(self._version + 1), b"\n".join(map(msgspec.json.encode, actions)) + b"\n"):
            self._version = -1
            raise Conflict(f"another program has changed the table at {str(self._log.parent)!r}; publish again")
        self._version += 1
        self._play(actions)
        if self._version % CHECKPOINT_EVERY == 0 and self._version:
            self._checkpoint(now)
        return self.version()

    def version(self) -> str:
        return str(self._version) if self._version >= 0 else ""

    def expire(self) -> None:
        """Older versions stay in the log, as after any vacuum, until they are before a checkpoint and a day old."""

    def version_at(self, end: int) -> str | None:
        limit = time.time_ns() // 1_000_000 - (GRACE_SECONDS - LEEWAY_SECONDS) * 1000
        found: int | None = None
        for version in sorted(self._commits()):
            actions = self._read(version)
            commits = [action["commitInfo"] for action in actions if "commitInfo" in action]
            dropped = any("remove" in action for action in actions)
            if dropped and any(one.get("timestamp", 0) <= limit for one in commits):
                found = None  # the files of all versions before it have gone
            if found is None and any(_END in one and int(one[_END]) >= end for one in commits):
                found = version
        return None if found is None else str(found)

    def _load(self) -> None:
        self._version, self._metadata, self._files, self._removed, self._end = -1, {}, {}, {}, 0
        start = 0
        with contextlib.suppress(FileNotFoundError):
            start = self._load_checkpoint()
        for version in sorted(found for found in self._commits() if found >= start):
            if version != self._version + 1:
                break
            self._play(self._read(version))
            self._version = version

    def _load_checkpoint(self) -> int:
        try:
            version: int = msgspec.json.decode((self._log / _LAST).read_bytes(), type=dict[str, Any])["version"]
        except (msgspec.DecodeError, KeyError) as error:
            raise self._broken(_LAST, error) from error
        try:
            rows = pq.read_table(self._log / f"{version:020d}.checkpoint.parquet").to_pylist(maps_as_pydicts="strict")
        except (pa.ArrowException, OSError) as error:
            raise self._broken(f"{version:020d}.checkpoint.parquet", error) from error
        self._play([{name: value for name, value in row.items() if value is not None} for row in rows])
        self._version = version
        with contextlib.suppress(FileNotFoundError):
            self._play(action for action in self._read(version) if "commitInfo" in action)
        return version + 1

    def _play(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if "add" in action:
                self._files[action["add"]["path"]] = action["add"]
                self._removed.pop(action["add"]["path"], None)
            elif "remove" in action:
                self._files.pop(action["remove"]["path"], None)
                self._removed[action["remove"]["path"]] = action["remove"]
            elif "metaData" in action:
                self._metadata = action["metaData"]
            elif "protocol" in action and action["protocol"].get("minWriterVersion", 0) > _PROTOCOL["minWriterVersion"]:
                raise StorageError(
                    f"another program has given the table at {str(self._log.parent)!r} features of Delta that Remuda "
                    f"does not write. Remove {str(self._log)!r}, and publish again; no row is lost"
                )
            elif "commitInfo" in action:
                self._end = max(self._end, int(action["commitInfo"].get(_END, 0)))

    def _checkpoint(self, now: int) -> None:
        """Write a checkpoint. The versions before it can be read for a day."""
        self._removed = {
            path: one for path, one in self._removed.items() if one.get("deletionTimestamp", 0) > now - _DAY
        }
        rows: list[Action] = [{"protocol": _PROTOCOL}, {"metaData": self._metadata}]
        rows += [{"add": one} for one in self._files.values()]
        rows += [{"remove": one} for one in self._removed.values()]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT), sink, compression="zstd")
        name = f"{self._version:020d}.checkpoint.parquet"
        replace_file(self._log / name, sink.getvalue().to_pybytes())
        replace_file(self._log / _LAST, msgspec.json.encode({"version": self._version, "size": len(rows)}))
        self._forget(now, name)

    def _forget(self, now: int, checkpoint: str) -> None:
        """Remove what no reader needs: commits before the checkpoint, and older checkpoints, after a day."""
        for path in self._log.iterdir():
            match = _COMMIT.fullmatch(path.name)
            obsolete = match is not None and int(match[1]) < self._version
            if obsolete or (path.name.endswith((".checkpoint.parquet", ".tmp")) and path.name != checkpoint):
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime * 1000 < now - _DAY:
                        path.unlink()

    def _commits(self) -> list[int]:
        try:
            found = [_COMMIT.fullmatch(path.name) for path in self._log.iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for match in found if match]

    def _commit(self, version: int) -> Path:
        return self._log / f"{version:020d}.json"

    def _read(self, version: int) -> list[Action]:
        path = self._commit(version)
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in path.read_bytes().splitlines() if line]
        except msgspec.DecodeError as error:
            raise self._broken(path.name, error) from error

    def _broken(self, name: str, error: Exception) -> StorageError:
        return StorageError(
            f"{name} of the table at {str(self._log.parent)!r} cannot be read ({error}). Remove {str(self._log)!r} "
            "and publish again; no row is lost, but earlier versions are"
        )

    def _new_metadata(self, now: int) -> Action:
        return {
            "id": str(uuid.uuid4()),
            "name": self._table,
            "description": None,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self._schema_text,
            "partitionColumns": [],
            "configuration": _SETTINGS,
            "createdTime": now,
        }

    def _add(self, file: DataFile) -> Action:
        stats = {
            "numRecords": file.rows,
            "minValues": {self._number: file.first},
            "maxValues": {self._number: file.last},
            "nullCount": {self._number: 0},
        }
        return {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": file.modified,
            "dataChange": True,
            "stats": msgspec.json.encode(stats).decode(),
        }


def _commit_info(now: int, end: int) -> Action:
    return {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}, _END: str(end)}
