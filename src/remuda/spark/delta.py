"""Versions of a table as Delta's log: any reader of Delta reads the table. Spark writes the files, delta-rs the log."""

from __future__ import annotations

import math
import time
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict
from remuda.spark.versions import LakeFile, Step

# Older versions cannot be read in full anyhow: the files that they alone list are vacuumed after a day.
_SETTINGS: Final = {"delta.logRetentionDuration": "interval 1 days"}
PLAIN_READERS: Final = "READ-THIS-TABLE-AS-DELTA-NOT-AS-A-FOLDER.parquet"
"""A file on which whoever reads the folder as plain Parquet fails, and in whose name the reason is."""
_WHY: Final = "This folder holds files of older versions too. Delta's log says which of them are the table now.\n"
_WHICH: Final = "delta.dataSkippingStatsColumns"
_HOW_MANY: Final = "delta.dataSkippingNumIndexedCols"


class DeltaLog:
    """The Delta log of the table in a folder."""

    def __init__(
        self, root: Path, schema: StructType, partitions: tuple[str, ...], apart: tuple[str, ...] = ()
    ) -> None:
        self.root = root
        self.schema = schema
        self.partitions = partitions
        self.apart = apart

    def folders(self) -> tuple[str, ...]:
        """The partitions that the table was begun with."""
        table = self.newest().table
        return self.partitions if table is None else tuple(table.metadata().partition_columns)

    def newest(self) -> DeltaVersion:
        if not DeltaTable.is_deltatable(str(self.root)):
            return DeltaVersion(self, None)
        table = DeltaTable(self.root)
        if table.protocol().min_reader_version > 1:
            raise Conflict(
                f"table {self.root.name!r} uses features of Delta that keep its rows from being read from its files "
                f"({', '.join(table.protocol().reader_features or ['column mapping'])}); nothing was read or written. "
                "Turn them off with the program that set them"
            )
        return DeltaVersion(self, table)

    def vacuum(self, older_than: float) -> int:
        """Delta counts in hours: a part of one is rounded up."""
        table = self.newest().table
        if table is None:
            return 0
        hours = max(math.ceil(older_than / 3600), 0)
        return len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False))

    def warn_plain_readers(self) -> None:
        """A full vacuum takes the warning for a file that nobody needs."""
        if not (self.root / PLAIN_READERS).exists():
            (self.root / PLAIN_READERS).write_text(_WHY)


class DeltaVersion:
    def __init__(self, log: DeltaLog, table: DeltaTable | None) -> None:
        self._log = log
        self.table = table
        self.version = 0 if table is None else table.version() + 1

    @cached_property
    def files(self) -> tuple[LakeFile, ...]:
        if self.table is None:
            return ()
        return tuple(
            LakeFile(unquote(row["path"]), {name: _text(value) for name, value in row.get("partition", {}).items()})
            for row in pa.table(self.table.get_add_actions()).to_pylist()
        )

    def last_batch(self, app: str) -> int | None:
        return None if self.table is None else self.table.transaction_version(app)

    def commit(self, step: Step) -> bool:
        batch = step.batch
        self._log.warn_plain_readers()
        # Without attempts of its own, delta-rs makes this very version or none.
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=None if batch is None else [Transaction(batch.app, batch.number)],
        )
        try:
            if self.table is None:
                return self._create(step, properties)
            if self._widened(self.table) or self._described(self.table):
                return False  # the version to follow is now another one
            self.table.create_write_transaction(
                [*map(self._removed, step.dropped), *map(self._added, step.added)],
                "append",
                self._schema,
                list(self._folders),
                commit_properties=properties,
            )
        except CommitFailedError:
            if self._log.newest().version == self.version:
                raise
            return False
        return True

    @cached_property
    def _folders(self) -> tuple[str, ...]:
        return self._log.folders()

    @property
    def _schema(self) -> Schema:
        # Delta took over how Spark writes a schema.
        return Schema.from_json(self._log.schema.json())

    def _create(self, step: Step, properties: CommitProperties) -> bool:
        try:
            create_table_with_add_actions(
                str(self._log.root),
                self._schema,
                list(map(self._added, step.added)),
                partition_by=list(self._folders),
                configuration={**_SETTINGS, **self._told},
                commit_properties=properties,
            )
        except DeltaError:
            if self._log.newest().version == 0:
                raise
            return False
        return True

    def _widened(self, table: DeltaTable) -> bool:
        """Add the columns that the table lacks; whether there were any."""
        known = {field.name for field in table.schema().fields}
        new = [field for field in self._schema.fields if field.name not in known]
        if new:
            table.alter.add_columns(new, commit_properties=CommitProperties(max_commit_retries=0))
        return bool(new)

    @property
    def _told(self) -> dict[str, str]:
        """Which columns have statistics. delta-rs takes the others for null unless the table says so, and a filter on
        one of them would find no row."""
        told = [name for name in self._log.apart if name not in self._folders]
        return {_WHICH: ",".join(told)} if told else {_HOW_MANY: "0"}

    def _described(self, table: DeltaTable) -> bool:
        """Whether the table did not say which columns have statistics, which it then does."""
        settings = table.metadata().configuration
        new = {**settings, **self._told} != settings
        if new:
            table.alter.set_table_properties(self._told, commit_properties=CommitProperties(max_commit_retries=0))
        return new

    def _added(self, file: LakeFile) -> AddAction:
        path = self._log.root / file.path
        status = path.stat()
        return AddAction(
            path=file.path,
            size=status.st_size,
            partition_values={name: file.partition[name] for name in self._folders},
            modification_time=status.st_mtime_ns // 1_000_000,
            data_change=True,
            stats=msgspec.json.encode(self._statistics(file, pq.read_metadata(path).num_rows)).decode(),
        )

    def _statistics(self, file: LakeFile, rows: int) -> dict[str, object]:
        inside = {name: value for name, value in file.partition.items() if name not in self._folders}
        known = {name: value for name, value in inside.items() if value is not None}
        nulls = {name: 0 if name in known else rows for name in inside}
        if not inside:
            return {"numRecords": rows}
        return {"numRecords": rows, "minValues": known, "maxValues": known, "nullCount": nulls}

    def _removed(self, file: LakeFile) -> RemoveAction:
        return RemoveAction(file.path, True, time.time_ns() // 1_000_000, partition_values=file.partition)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
