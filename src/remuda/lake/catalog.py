"""The catalog of a log's Iceberg tables: SQLite, laid out as pyiceberg and Iceberg's JDBC catalog have it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remuda.model.errors import NotFound, StorageError
from remuda.spark.lake.writing import make_folder, open_file
from remuda.spark.session.missing_pyspark import SparkMissing

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

FILE: Final = "catalog.db"
NAMESPACE: Final = "remuda"
_PATIENCE: Final = 10.0
_TABLES: Final = """
create table if not exists iceberg_tables (
    catalog_name varchar(255) not null, table_namespace varchar(255) not null, table_name varchar(255) not null,
    metadata_location varchar(1000), previous_metadata_location varchar(1000), iceberg_type varchar(5),
    primary key (catalog_name, table_namespace, table_name));
create table if not exists iceberg_namespace_properties (
    catalog_name varchar(255) not null, namespace varchar(255) not null, property_key varchar(255) not null,
    property_value varchar(1000) not null, primary key (catalog_name, namespace, property_key));
insert or ignore into iceberg_namespace_properties values ('remuda', 'remuda', 'exists', 'true');
"""
_ONE: Final = "catalog_name = ? and table_namespace = ? and table_name = ?"


class TableCatalog:
    """Which metadata of each table is the newest."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._seen: tuple[int, int, int] | None = None
        self._known: dict[str, str | None] = {}
        """What it said when the file last changed."""

    def location(self, table: str) -> str | None:
        stamp = self._stamp()
        if stamp is None or stamp != self._seen:
            self._seen, self._known = stamp, {}
        if table not in self._known:
            self._known[table] = None if stamp is None else self._ask(table)
        return self._known[table]

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _ask(self, table: str) -> str | None:
        with self._open() as database:
            try:
                found = database.execute(
                    f"select metadata_location from iceberg_tables where {_ONE}", (NAMESPACE, NAMESPACE, table)
                ).fetchone()
            except sqlite3.OperationalError:  # created by a process that was killed before it made the tables
                return None
        return None if found is None else str(found[0])

    def move(self, table: str, before: str | None, after: str) -> bool:
        """Point a table to other metadata; False if another process was first."""
        if before is None:
            self._make()
        with self._open() as database:
            if before is None:
                database.executescript(_TABLES)
                changed = database.execute(
                    "insert or ignore into iceberg_tables "
                    "(catalog_name, table_namespace, table_name, metadata_location) values (?, ?, ?, ?)",
                    (NAMESPACE, NAMESPACE, table, after),
                )
            else:
                changed = database.execute(
                    f"update iceberg_tables set metadata_location = ?, previous_metadata_location = ? where {_ONE} "
                    "and metadata_location = ?",
                    (after, before, NAMESPACE, NAMESPACE, table, before),
                )
            return changed.rowcount == 1

    def _make(self) -> None:
        """SQLite gives the files it makes to everybody who may read the folder."""
        try:
            make_folder(self._path.parent)
            os.close(open_file(self._path, os.O_RDWR))
        except OSError as error:
            raise StorageError(
                f"the catalog {str(self._path)!r} cannot be written: {error.strerror}; the log itself is untouched. "
                "Give leave to write there, or remove what is in the way"
            ) from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = None
        try:
            database = sqlite3.connect(self._path, timeout=_PATIENCE)
            database.execute("pragma synchronous = normal")
            with database:
                yield database
        except sqlite3.Error as error:
            raise StorageError(
                f"the catalog {str(self._path)!r} cannot be used: {error}. Remove it, and publish again; no row is lost"
            ) from error
        finally:
            if database is not None:
                database.close()


def catalog(folder: Path) -> SqlCatalog:
    """The catalog for pyiceberg; `remuda.messages` and `remuda.events` are in it."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        raise SparkMissing("pyiceberg is an extra: pip install 'remuda[iceberg]'") from error
    if not (folder / FILE).exists():
        raise NotFound(
            f"there are no Iceberg tables under {str(folder)!r} yet; publish them: remuda lake publish {folder.parent}"
        )
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{folder / FILE}", warehouse=f"file://{folder}")
