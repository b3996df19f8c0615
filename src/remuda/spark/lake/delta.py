"""Delta's log of a table: one small JSON file for each version, and now and then a checkpoint of them all.

The one writer of it, for lakes and for the tables of a log's own files. What was read is kept, so that a commit costs
what it changes and not what the table holds.
"""

from __future__ import annotations

import io
import re
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from remuda.model.errors import Conflict, StorageError
from remuda.spark.lake.store import Store
from remuda.spark.lake.versions import LakeFile, Step

LOG: Final = "_delta_log"
CHECKPOINT_EVERY: Final = 100
PLAIN_READERS: Final = "READ-THIS-TABLE-AS-DELTA-NOT-AS-A-FOLDER.parquet"
"""A file on which whoever reads the folder as plain Parquet fails, and in whose name the reason is."""
_WHY: Final = b"This folder holds files of older versions too. Delta's log says which of them are the table now.\n"
_DAY: Final = 24 * 3600 * 1000
_TOMBSTONES: Final = 8 * _DAY
"""So long checkpoints tell of files that were dropped, for who removes them."""
_ORPHAN_SECONDS: Final = 24 * 3600.0
# Older versions cannot be read in full anyhow: the files that they alone list are vacuumed after a day.
_SETTINGS: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
}
_WHICH: Final = "delta.dataSkippingStatsColumns"
_HOW_MANY: Final = "delta.dataSkippingNumIndexedCols"
_PROTOCOL: Final = {"minReaderVersion": 1, "minWriterVersion": 2}
_UNDERSTOOD: Final = {"appendOnly", "invariants"}
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_LAST: Final = "_last_checkpoint"
_LOOKS: Final = 3
_TEXTS: Final = pa.map_(pa.string(), pa.string())
_NAMES: Final = pa.list_(pa.string())
_ROWS: Final = pa.schema(
    {
        "protocol": pa.struct(
            {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32(), "writerFeatures": _NAMES}
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(), "name": pa.string(), "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}), "schemaString": pa.string(),
                "partitionColumns": _NAMES, "configuration": _TEXTS, "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "modificationTime": pa.int64(),
                "dataChange": pa.bool_(), "stats": pa.string(),
            }
        ),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}),
    }
)  # fmt: skip

Action = dict[str, Any]


class Version:
    """A table as it is at one moment. `version` counts its commits."""

    def __init__(self, log: DeltaLog, number: int) -> None:
        self.version = number + 1
        self._log = log
        self.files: tuple[LakeFile, ...] = tuple(log.files.values())
        self._batches = dict(log.batches)
        self.ends = dict(log.ends)
        self.folders: tuple[str, ...] = tuple(log.metadata.get("partitionColumns", log.partitions))
        """The columns whose values are in the names of folders, and not in the files."""

    def last_batch(self, app: str) -> int | None:
        """The number of the last batch of an application; None if there was none."""
        return self._batches.get(app)

    def commit(self, step: Step) -> bool:
        """Make the next version, in one step; False if another job has just made it, and nothing is changed."""
        return self._log.commit(self.version - 1, step)


class DeltaLog:
    """The log of the table in a store. `columns` are those that a writer has, as Delta describes them; statistics are
    told of the columns `bounded`, and `always` of those of which every file has them. A table with a `name` of its own
    warns no readers of its folder."""

    def __init__(
        self,
        store: Store,
        columns: Sequence[Mapping[str, Any]] = (),
        partitions: Sequence[str] = (),
        bounded: Sequence[str] = (),
        name: str | None = None,
        always: Sequence[str] = (),
    ) -> None:
        self.store = store
        self.partitions = tuple(partitions)
        self._columns = list(columns)
        self._bounded = (*always, *bounded)
        self._always = tuple(always)
        self._name = name
        self._warns = name is None
        self._guard = threading.RLock()
        self._vacuumed: set[str] = set()
        self._forget_all()

    def _forget_all(self) -> None:
        self.number = -1
        self.metadata: Action = {}
        self.files: dict[str, LakeFile] = {}
        self._adds: dict[str, Action] = {}
        self.batches: dict[str, int] = {}
        self.ends: dict[str, str] = {}
        """What commits said beside their changes, each the last."""
        self._protocol: Action = dict(_PROTOCOL)
        self._removes: dict[str, Action] = {}
        self._newest: Version | None = None

    def newest(self) -> Version:
        """The newest version, by one look at what came since the last."""
        with self._guard:
            for left in reversed(range(_LOOKS)):
                try:
                    self._refresh()
                    break
                except FileNotFoundError as error:  # removed between the look and the reading, as old versions are
                    self._forget_all()
                    if not left:
                        raise self._broken(str(error.args[0]), error) from error
            if self._newest is None or self._newest.version != self.number + 1:
                self._newest = Version(self, self.number)
            return self._newest

    def _refresh(self) -> None:
        if self.number >= 0:
            commits = _numbers(_COMMIT, self.store.names(LOG, _commit(self.number)))
            if commits[:1] == [self.number]:
                return self._follow(commits[1:])
            self._forget_all()  # it is another table, or the log was cut after where it was read to
        names = self.store.names(LOG)
        for point in _numbers(_CHECKPOINT, names)[-1:]:
            self._play(self._checkpoint_rows(point))
            self.number = point
        commits = _numbers(_COMMIT, names)
        if self.number in commits:
            self._play(action for action in self.commit_at(self.number) if "commitInfo" in action)
        return self._follow([one for one in commits if one > self.number])

    def _follow(self, commits: Sequence[int]) -> None:
        for one in commits:
            if one != self.number + 1:
                raise FileNotFoundError(_commit(self.number + 1))
            self._play(self.commit_at(one))
            self.number = one

    def commit(self, before: int, step: Step) -> bool:
        """Make the version that follows `before`; False if there is one already."""
        with self._guard:
            if before != self.number:
                return False
            self._check_writable()
            now = time.time_ns() // 1_000_000
            actions = self._actions(step, now)
            self._warn_plain_readers()
            text = b"\n".join(map(msgspec.json.encode, actions)) + b"\n"
            if not self.store.create(f"{LOG}/{_commit(before + 1)}", text):
                return False
            self._play(actions)
            self.number = before + 1
            if self.number and self.number % CHECKPOINT_EVERY == 0:
                self._checkpoint(now)
            return True

    def _actions(self, step: Step, now: int) -> list[Action]:
        kind = "WRITE" if step.data_change else "OPTIMIZE"
        # By its own id a commit is known again whose answer was lost.
        told = {"timestamp": now, "operation": kind, "operationParameters": {"mode": "Append"}, **step.told}
        actions: list[Action] = [{"commitInfo": {**told, "txnId": uuid.uuid4().hex, "engineInfo": "remuda"}}]
        if self.number < 0:
            actions += [{"protocol": _PROTOCOL}, {"metaData": self._begun(now)}]
        elif (described := self._described()) != self.metadata:
            actions.append({"metaData": described})
        noted = (*filter(None, [step.batch]), *step.marks)
        actions += [{"txn": {"appId": one.app, "version": one.number, "lastUpdated": now}} for one in noted]
        change = {"dataChange": step.data_change}
        actions += [
            {"remove": {"path": _encoded(one.path), "deletionTimestamp": now, **change}} for one in step.dropped
        ]
        return actions + [{"add": self._add(one, now, **change)} for one in step.added]

    def outdated(self) -> bool:
        """Whether an earlier Remuda described the table otherwise; the next version puts that right."""
        return self.number >= 0 and self._described() != self.metadata

    def _described(self) -> Action:
        """The table's description with the columns that it lacks, and which of them have statistics: delta-rs takes
        the others for null unless the table says so, and a filter on one of them would find no row."""
        schema: Action = msgspec.json.decode(self.metadata["schemaString"])
        known = {field["name"] for field in schema["fields"]}
        new = [field for field in self._columns if field["name"] not in known]
        settings = {**self.metadata["configuration"], **self._settings(self.metadata["configuration"])}
        text = self.metadata["schemaString"] if not new else _schema_text([*schema["fields"], *new])
        return {**self.metadata, "schemaString": text, "configuration": settings}

    def _settings(self, known: Action) -> dict[str, str]:
        """A table says from its begin on which columns have statistics: no reader looks for them in older files."""
        said = str(known.get(_WHICH, "")).split(",")
        bounded = [name for name in self._bounded if not known or name in said or name in self._always]
        told = [name for name in bounded if name not in self._folders()]
        return {_WHICH: ",".join(told)} if told else {_HOW_MANY: "0"}

    def _folders(self) -> Sequence[str]:
        names: Sequence[str] = self.metadata.get("partitionColumns", self.partitions)
        return names

    def _begun(self, now: int) -> Action:
        return {
            "id": str(uuid.uuid4()),
            "name": self._name,
            "description": None,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _schema_text(self._columns),
            "partitionColumns": list(self.partitions),
            "configuration": {**_SETTINGS, **self._settings({})},
            "createdTime": now,
        }

    def _add(self, file: LakeFile, now: int, **change: bool) -> Action:
        folders = self._folders()
        inside = {name: (value, value) for name, value in file.partition.items() if name not in folders}
        bounds = {**file.bounds, **inside}
        known = {name: ends for name, ends in bounds.items() if ends[0] is not None}
        stats = {
            "numRecords": file.rows,
            "minValues": {name: ends[0] for name, ends in known.items()},
            "maxValues": {name: ends[1] for name, ends in known.items()},
            "nullCount": {name: 0 if name in known else file.rows for name in bounds},
        }
        return {
            "path": _encoded(file.path),
            "partitionValues": {name: file.partition.get(name) for name in folders},
            "size": file.size,
            "modificationTime": file.modified or now,
            **change,
            "stats": msgspec.json.encode(stats).decode(),
        }

    def _play(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case {"add": one}:
                    self._adds[one["path"]], self.files[one["path"]] = one, _file(one)
                    self._removes.pop(one["path"], None)
                case {"remove": one}:
                    self._adds.pop(one["path"], None)
                    self.files.pop(one["path"], None)
                    self._removes[one["path"]] = one
                case {"txn": one}:
                    self.batches[one["appId"]] = max(one["version"], self.batches.get(one["appId"], one["version"]))
                case {"metaData": one}:
                    self.metadata = one
                case {"protocol": one}:
                    self._protocol = one
                    self._check_readable()
                case {"commitInfo": one}:
                    self.ends |= {name: text for name, text in one.items() if name.startswith("remuda.")}

    def _check_readable(self) -> None:
        if self._protocol.get("minReaderVersion", 1) > 1:
            features = self._protocol.get("readerFeatures") or ["column mapping"]
            raise Conflict(
                f"table {self._shown} uses features of Delta that keep its rows from being read from its files "
                f"({', '.join(features)}); nothing was read or written. Turn them off with the program that set them"
            )

    def _check_writable(self) -> None:
        unknown = {*(self._protocol.get("writerFeatures") or ())} - _UNDERSTOOD
        if unknown or _PROTOCOL["minWriterVersion"] < self._protocol.get("minWriterVersion", 2) < 7:
            raise Conflict(
                f"another program has given table {self._shown} features of Delta that Remuda does not write "
                f"({', '.join(sorted(unknown)) or 'of a newer version'}); nothing was written. Turn them off with that "
                "program"
            )

    def _checkpoint(self, now: int) -> None:
        """Write a checkpoint. The versions before it can be read for a day."""
        kept = now - _TOMBSTONES
        self._removes = {path: one for path, one in self._removes.items() if _dropped_at(one) > kept}
        rows: list[Action] = [{"protocol": self._protocol}, {"metaData": self.metadata}]
        rows += [{"txn": {"appId": app, "version": number}} for app, number in self.batches.items()]
        rows += [{"add": one} for one in self._adds.values()]
        rows += [{"remove": one} for one in self._removes.values()]
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=_ROWS), sink, compression="zstd")
        name = f"{self.number:020d}.checkpoint.parquet"
        self.store.replace(f"{LOG}/{name}", sink.getvalue())
        self.store.replace(f"{LOG}/{_LAST}", msgspec.json.encode({"version": self.number, "size": len(rows)}))
        self._tidy(now)

    def _tidy(self, now: int) -> None:
        """Remove what no reader needs: versions before the checkpoint, after a day. The oldest first: a writer that has
        slept long must not find a place among those that are left."""
        old = []
        for one in sorted(self.store.entries(LOG)):
            name = one.name.removeprefix(f"{LOG}/")
            match = _COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name)
            before = int(match[1]) < self.number if match else name.endswith(".tmp")
            if before and one.modified * 1000 < now - _DAY:
                old.append(one.name)
        self.store.remove(old)

    def _checkpoint_rows(self, number: int) -> list[Action]:
        name = f"{number:020d}.checkpoint.parquet"
        data = self.store.read(f"{LOG}/{name}")
        try:
            rows = pq.read_table(io.BytesIO(data)).to_pylist(maps_as_pydicts="strict")
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._broken(name, error) from error
        return [{name: _told(value) for name, value in row.items() if value is not None} for row in rows]

    def commit_at(self, number: int) -> list[Action]:
        """What a version changed."""
        name = _commit(number)
        lines = self.store.read(f"{LOG}/{name}").splitlines()
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines if line]
        except msgspec.DecodeError as error:
            raise self._broken(name, error) from error

    def _broken(self, name: str, error: Exception) -> StorageError:
        return StorageError(
            f"{name} of the log of table {self._shown} cannot be read ({error}); nothing was changed. Restore it from "
            f"a copy. If the table is of a log's own sealed files, remove {self.store.place}/{LOG} instead and publish "
            "again: no row is lost"
        )

    def vacuum(self, older_than: float, *, full: bool = False) -> int:
        """Remove files that were dropped `older_than` seconds ago, and with `full` those that no version lists and
        that have been there for a day, as failed jobs leave them; returns how many."""
        if not self.newest().version:
            return 0
        limit = time.time() - older_than
        gone = {
            path: unquote(path)
            for path, one in self._removes.items()
            if path not in self._vacuumed and _dropped_at(one) / 1000 <= limit
        }
        self.store.remove(gone.values())
        self._vacuumed |= gone.keys()
        self._vacuumed &= self._removes.keys()
        if not full:
            return len(gone)
        known = {*map(unquote, self._adds), *map(unquote, self._removes)}
        limit = min(limit, time.time() - _ORPHAN_SECONDS)
        strays = [
            one.name
            for one in self.store.entries()
            if one.name not in known and one.modified <= limit and not one.name.startswith((LOG, "READ-THIS-TABLE"))
        ]
        self.store.remove(strays)
        return len(gone) + len(strays)

    def _warn_plain_readers(self) -> None:
        """Another program's full vacuum takes the warning for a file that nobody needs."""
        if self._warns:
            self.store.create(PLAIN_READERS, _WHY)
            self._warns = False

    @property
    def _shown(self) -> str:
        return repr(self.store.place)


def _schema_text(fields: Sequence[Mapping[str, Any]]) -> str:
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _file(add: Action) -> LakeFile:
    stats: Action = msgspec.json.decode(add.get("stats") or "{}")
    known, greatest = stats.get("minValues") or {}, stats.get("maxValues") or {}
    nulls, rows = stats.get("nullCount") or {}, stats.get("numRecords")
    bounds: dict[str, tuple[Any, Any]] = {name: (None, None) for name, count in nulls.items() if rows and count == rows}
    bounds |= {
        name: (least, greatest[name]) for name, least in known.items() if name in greatest and not nulls.get(name)
    }
    return LakeFile(
        unquote(add["path"]), dict(add["partitionValues"]), add["size"], rows, add["modificationTime"], bounds
    )


def _dropped_at(remove: Action) -> int:
    return remove.get("deletionTimestamp") or 0


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))


def _commit(number: int) -> str:
    return f"{number:020d}.json"


def _encoded(path: str) -> str:
    return quote(path, safe="/=-_.~+,:@!$&'()*;")


def _told(action: Action) -> Action:
    """An action of a checkpoint without the fields that another program left empty."""
    return {name: value for name, value in action.items() if value is not None}
