"""Iceberg's metadata over sealed files, written by pyiceberg with a catalog in SQLite beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from remuda.lake.files import TABLES, DataFile, folder_of
from remuda.spark.tables import NUMBER, SCHEMAS

CATALOG: Final = "catalog.db"
NAMESPACE: Final = "remuda"
_END: Final = "remuda.end"
_SETTINGS: Final = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}


def catalog(root: Path) -> SqlCatalog:
    """The catalog of a log's tables; `remuda.messages` and `remuda.events` are in it."""
    folder = root / TABLES
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{folder / CATALOG}", warehouse=f"file://{folder}")


class IcebergLakehouse:
    """The Iceberg table of a log's table."""

    def __init__(self, root: Path, table: str) -> None:
        self._root = folder_of(root, table)
        self._name = (NAMESPACE, table)
        self._schema = SCHEMAS[table]
        self._number = NUMBER[table]
        self._catalog = catalog(root)

    def listed(self) -> frozenset[str]:
        table = self._table()
        if table is None:
            return frozenset()
        return frozenset(self._below(task.file.file_path) for task in table.scan().plan_files())

    def commit(self, added: Sequence[DataFile], dropped: Sequence[str], end: int) -> str:
        table = self._table() or self._create()
        gone = set(dropped)
        before = [task.file for task in table.scan().plan_files() if self._below(task.file.file_path) in gone]
        with table.transaction() as transaction:
            update = transaction.update_snapshot(snapshot_properties={_END: str(end)})
            with update.overwrite() if before else update.fast_append() as producer:
                for file in added:
                    producer.append_data_file(self._data_file(table, file))
                for old in before:
                    producer.delete_data_file(old)
        return self.version()

    def version(self) -> str:
        table = self._table()
        snapshot = None if table is None else table.current_snapshot()
        return "" if snapshot is None else str(snapshot.snapshot_id)

    def version_at(self, end: int) -> str | None:
        table = self._table()
        for snapshot in table.snapshots() if table is not None else ():
            told = None if snapshot.summary is None else snapshot.summary.get(_END)
            if told is not None and int(told) >= end:
                return str(snapshot.snapshot_id)
        return None

    def _table(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _create(self) -> Table:
        self._root.mkdir(parents=True, exist_ok=True)
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        table = self._catalog.create_table(
            self._name, self._schema, location=f"file://{self._root}", properties=_SETTINGS
        )
        mapping = table.schema().name_mapping.model_dump_json()
        with table.transaction() as transaction:
            # Files that were sealed before there were tables have no ids of fields: they are read by names.
            transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        return table

    def _data_file(self, table: Table, file: DataFile) -> IcebergFile:
        """As the writer knows it: its footer is not read once more."""
        number = table.schema().find_field(self._number).field_id
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"file://{self._root / file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=file.rows,
            file_size_in_bytes=file.size,
            value_counts={number: file.rows},
            null_value_counts={number: 0},
            lower_bounds={number: to_bytes(LongType(), file.first)},
            upper_bounds={number: to_bytes(LongType(), file.last)},
            spec_id=table.metadata.default_spec_id,
        )

    def _below(self, uri: str) -> str:
        return Path(uri.removeprefix("file://")).relative_to(self._root).as_posix()
