"""Delta's log over sealed files, written by delta-rs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from remuda.lake.files import DataFile, folder_of
from remuda.spark.tables import NUMBER, SCHEMAS

_END: Final = "remuda.end"
_SETTINGS: Final = {"delta.logRetentionDuration": "interval 1 days", "delta.checkpointInterval": "100"}


class DeltaLakehouse:
    """The Delta table of a log's table."""

    def __init__(self, root: Path, table: str) -> None:
        self._root = folder_of(root, table)
        self._number = NUMBER[table]
        self._schema = Schema.from_arrow(SCHEMAS[table])

    def listed(self) -> frozenset[str]:
        table = self._table()
        return frozenset() if table is None else frozenset(_below(self._root, uri) for uri in table.file_uris())

    def commit(self, added: Sequence[DataFile], dropped: Sequence[str], end: int) -> str:
        properties = CommitProperties(custom_metadata={_END: str(end)}, max_commit_retries=0)
        actions = [self._added(file) for file in added]
        table = self._table()
        if table is None:
            self._root.mkdir(parents=True, exist_ok=True)
            create_table_with_add_actions(
                str(self._root), self._schema, actions, configuration=_SETTINGS, commit_properties=properties
            )
            return self.version()
        now = time.time_ns() // 1_000_000
        gone = [RemoveAction(path, True, now, partition_values={}) for path in dropped]
        table.create_write_transaction([*gone, *actions], "append", self._schema, [], commit_properties=properties)
        return self.version()

    def version(self) -> str:
        table = self._table()
        return "" if table is None else str(table.version())

    def version_at(self, end: int) -> str | None:
        table = self._table()
        for entry in reversed(table.history() if table is not None else []):
            if int(entry.get(_END, -1)) >= end:
                return str(entry["version"])
        return None

    def _table(self) -> DeltaTable | None:
        return DeltaTable(self._root) if DeltaTable.is_deltatable(str(self._root)) else None

    def _added(self, file: DataFile) -> AddAction:
        stats = {
            "numRecords": file.rows,
            "minValues": {self._number: file.first},
            "maxValues": {self._number: file.last},
            "nullCount": {self._number: 0},
        }
        return AddAction(
            path=file.path,
            size=file.size,
            partition_values={},
            modification_time=file.modified,
            data_change=True,
            stats=msgspec.json.encode(stats).decode(),
        )


def _below(root: Path, uri: str) -> str:
    return Path(uri.removeprefix("file://")).relative_to(root).as_posix()
