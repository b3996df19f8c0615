"""Publishing: lakehouse tables updated to the sealed files of a log, each version with the number it reaches to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from remuda.lake.delta import DeltaLakehouse
from remuda.lake.files import GRACE_SECONDS, TABLES, DataFile, folder_of, link_files, remove_links, warn_plain_readers
from remuda.lake.iceberg import IcebergLakehouse
from remuda.model.errors import Conflict, InvalidOption, StorageError
from remuda.spark.lake.writing import make_folder, open_file
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.spark_log import directory, place_text
from remuda.spark.source.tables import EVENTS, MESSAGES

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"


class Published(msgspec.Struct, frozen=True):
    """What became of one table in one format."""

    table: str
    format: str
    location: str
    version: str
    """By which this state of the table can be read later; empty where there is none yet."""
    added: int
    dropped: int
    end: int
    """The number after the last one that the table holds."""
    damaged: tuple[str, ...] = ()
    """Sealed files that are not listed because they are damaged, and those that were removed by something other than
    the collector."""


class LakehouseTable(Protocol):
    """A table in a format of the lakehouse, over files that are there already."""

    def refresh(self) -> None:
        """Look whether another program has made a version."""
        ...

    def outdated(self) -> bool:
        """Whether an earlier Remuda described the table otherwise; the next version puts that right."""
        ...

    def end(self) -> int:
        """The number that the newest version reaches to."""
        ...

    def listed(self) -> frozenset[str]:
        """The files of the newest version, by their paths under the table's folder."""
        ...

    def commit(self, added: Sequence[DataFile], dropped: Sequence[str], end: int) -> str:
        """Make a version with other files, in one step; returns its name."""
        ...

    def expire(self) -> None:
        """Let the versions go whose files are about to go."""
        ...

    def version(self) -> str: ...

    def version_at(self, end: int) -> str | None:
        """The first version that reached to a number and can still be read; None where there is none."""
        ...


class TablePublisher:
    """Keeps the tables of a log up to date with its sealed files, and in memory what it has read of them."""

    def __init__(self, root: Path, formats: Sequence[str]) -> None:
        for kind in formats:
            _check_format(kind)
        self._root = root
        self._tables = {
            table: {kind: _FORMATS[kind](root, table) for kind in dict.fromkeys(formats)}
            for table in (MESSAGES, EVENTS)
        }
        self._looked: set[str] = set()

    def publish(self, patience: float = 60.0) -> list[Published]:
        """Update all tables. Raises `Conflict` where another process has been publishing for `patience` seconds."""
        with _alone(self._root, patience), _said(self._root):
            return [one for table in self._tables for one in self._publish(table)]

    def _publish(self, table: str) -> list[Published]:
        tables = self._tables[table]
        for one in tables.values():
            one.refresh()
        listed = {kind: one.listed() for kind, one in tables.items()}
        known = frozenset.intersection(*listed.values()) if listed else frozenset()
        found = link_files(self._root, table, known)
        went = frozenset().union(*listed.values()) - found.names
        first = table not in self._looked
        damaged = (*found.damaged, *(self._removed(table) if went or first else ()))
        self._looked.add(table)
        published = []
        for kind, one in tables.items():
            end = max(one.end(), found.end)
            added = [file for file in found.fresh if file.path not in listed[kind]]
            dropped = sorted(listed[kind] - found.names)
            version = one.commit(added, dropped, end) if added or dropped or one.outdated() else one.version()
            location = str(folder_of(self._root, table))
            published.append(Published(table, kind, location, version, len(added), len(dropped), end, damaged))
        warn_plain_readers(self._root, table)
        for one in tables.values():
            one.expire()
        remove_links(self._root, table, found.names, GRACE_SECONDS)
        return published

    def _removed(self, table: str) -> Iterator[str]:
        """Files that are gone although the collector did not remove them."""
        for gone in EmbeddedLog(str(self._root)).removed(table):
            yield f"sealed/{table}-{gone.start:020d}-{gone.stop - 1:020d}.parquet"


def publish_tables(url: str | os.PathLike[str], formats: Sequence[str]) -> list[Published]:
    root = Path(directory(place_text(url))).absolute()
    wanted = () if isinstance(formats, str | bytes) or not isinstance(formats, Iterable) else tuple(formats)
    if not wanted:
        raise InvalidOption(f"formats is a list, of {' and '.join(_FORMATS)}, not {formats!r}")
    publisher = TablePublisher(root, wanted)
    EmbeddedLog(str(root))  # or say what is wrong with it
    return publisher.publish()


def version_at(url: str | os.PathLike[str], table: str, kind: str, number: int) -> int | None:
    """The version of a table that first held the row before a number: for time travel by offset. One whose files have
    gone since is passed over.

    As readers take it: the `version` of a `DeltaTable`, or the `snapshot_id` of a scan of Iceberg's.
    """
    if table not in (MESSAGES, EVENTS):
        raise InvalidOption(f"there is no table {table!r}; the tables are {MESSAGES}, {EVENTS}")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidOption(f"number must be a whole number from 0 on, not {number!r}")
    root = Path(directory(place_text(url))).absolute()
    found = _FORMATS[_check_format(kind)](root, table)
    EmbeddedLog(str(root))  # or say what is wrong with it
    with _said(root):
        found.refresh()
        version = found.version_at(number)
    return None if version is None else int(version)


def _check_format(kind: str) -> str:
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise InvalidOption(f"a table's format is {' or '.join(_FORMATS)}, not {kind!r}")
    return kind


@contextlib.contextmanager
def _alone(root: Path, patience: float) -> Iterator[None]:
    """One publisher at a time: the second usually finds that nothing is left to do."""
    try:
        make_folder(root / TABLES, like=root / "tail")
        handle = open_file(root / TABLES / "lock", os.O_RDWR)
    except OSError as error:
        raise StorageError(
            f"{str(root / TABLES)!r} cannot be written: {error.strerror}; the log itself is untouched. Allow writing "
            "there, or remove what is in the way"
        ) from error
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Conflict(
                        f"another process is publishing the tables of {str(root)!r} and has not finished; nothing was "
                        "changed. Find out what it is waiting for, then publish again"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _said(root: Path) -> Iterator[None]:
    """What the file system refuses, as a user can act on it."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the tables under {str(root / TABLES)!r} cannot be read or written: {error}; the log itself is untouched. "
            "Give leave to, or remove what is in the way, and publish again"
        ) from error


_FORMATS: Final[dict[str, Callable[[Path, str], LakehouseTable]]] = {DELTA: DeltaLakehouse, ICEBERG: IcebergLakehouse}
