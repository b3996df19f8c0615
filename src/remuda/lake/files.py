"""The sealed files of a log under lasting names: hard links, so that no byte is copied and no reader is disturbed.

The broker replaces a sealed file when it shrinks it, and removes it when all of it has expired. A link is named after
the very file that it points to: it never changes, and stays for a while after no table lists it any more.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.sealed.parquet import SealedParquet, Unreadable
from remuda.log.segments import SealedFile, parse_sealed
from remuda.model.errors import StorageError
from remuda.spark.lake.writing import make_folder, replace_file
from remuda.spark.source.tables import NUMBER

TABLES: Final = "tables"
PLAIN_READERS: Final = "READ-THIS-TABLE-AS-DELTA-OR-ICEBERG-NOT-AS-A-FOLDER.parquet"
"""A file on which whoever reads the folder as plain Parquet fails, and in whose name the reason is."""
_WHY: Final = b"This folder holds files of older versions too. The table's metadata says which of them are the table.\n"
GRACE_SECONDS: Final = 24 * 3600.0
"""Links stay so long after no table lists them any more."""
LEEWAY_SECONDS: Final = 60.0
"""Versions that list a link go so much earlier."""


class DataFile(msgspec.Struct, frozen=True):
    """A sealed file as a table lists it."""

    path: str
    """Under the table's folder."""
    first: int
    last: int
    rows: int
    size: int
    modified: int
    """Milliseconds since 1970."""


def folder_of(root: Path, table: str) -> Path:
    return root / TABLES / table


class SealedNow(NamedTuple):
    """What is sealed at one moment."""

    names: frozenset[str]
    """The lasting names of all files."""
    fresh: tuple[DataFile, ...]
    """Those that were not known yet."""
    damaged: tuple[str, ...]
    end: int
    """The number after the last one of all files."""


def link_files(root: Path, table: str, known: frozenset[str]) -> SealedNow:
    """Give lasting names to all files that are sealed now. Those `known` were linked and checked before; if somebody
    has removed such a link, it is made again."""
    names: set[str] = set()
    fresh: list[DataFile] = []
    damaged: list[str] = []
    newest = ""
    there = frozenset(_names(folder_of(root, table) / "data"))
    for source, (inode, modified) in sorted(_sealed(root, table)):
        newest = source
        name = f"data/{source.removesuffix('.parquet')}-{inode:x}-{modified // 1_000_000:x}.parquet"
        if name in known and name.removeprefix("data/") in there:
            names.add(name)
            continue
        file = parse_sealed(f"sealed/{source}")
        if file is None:
            continue  # not the log's
        try:
            fresh.append(_linked(root, table, file, name))
            names.add(name)
        except FileNotFoundError:
            continue  # collected or shrunk between listing and linking: the next call finds what there is then
        except Unreadable:
            damaged.append(file.name)
    last = parse_sealed(f"sealed/{newest}")
    return SealedNow(frozenset(names), tuple(fresh), tuple(damaged), 0 if last is None else last.last + 1)


def _sealed(root: Path, table: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The names of a table's sealed files, each with its inode and the time it was written (nanoseconds)."""
    with contextlib.suppress(FileNotFoundError), os.scandir(root / "sealed") as entries:
        for entry in entries:
            if entry.name.startswith(f"{table}-") and entry.name.endswith(".parquet"):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield entry.name, (status.st_ino, status.st_mtime_ns)


def warn_plain_readers(root: Path, table: str) -> None:
    folder = folder_of(root, table) / "data"
    if folder.is_dir() and not (folder / PLAIN_READERS).exists():
        replace_file(folder / PLAIN_READERS, _WHY, sync=False)


def remove_links(root: Path, table: str, keep: frozenset[str], older_than: float = GRACE_SECONDS) -> int:
    """Remove links that no table has listed for `older_than` seconds; returns how many."""
    folder = folder_of(root, table) / "data"
    limit, gone = time.time() - older_than, 0
    for name in _names(folder):
        if f"data/{name}" in keep:
            continue
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            dropped = _dropped_at(path)
            if dropped < limit:
                path.unlink()
                path.with_suffix(".dropped").unlink(missing_ok=True)
                gone += 1
    return gone


def _linked(root: Path, table: str, file: SealedFile, name: str) -> DataFile:
    target = folder_of(root, table) / name
    make_folder(target.parent)
    _link(root, file, target)
    status = target.stat()
    if f"-{status.st_ino:x}-" not in name:
        # Another file has the name, as in tables that were copied; or this one was shrunk between the look and the
        # link.
        target.unlink()
        _link(root, file, target)
        status = target.stat()
        if f"-{status.st_ino:x}-" not in name:
            target.unlink()
            raise FileNotFoundError(name)
    sealed = SealedParquet(DirectoryDisk.of_log(root), target.relative_to(root).as_posix())
    if not sealed.whole():
        target.unlink()
        raise Unreadable(f"{file.name} is damaged")
    number = NUMBER[table]
    meta: Any = sealed.metadata
    ends = [_ends(meta.row_group(group), number) for group in range(meta.num_row_groups)]
    return DataFile(
        path=name,
        first=min((one[0] for one in ends), default=file.first),
        last=max((one[1] for one in ends), default=file.last),
        rows=meta.num_rows,
        size=status.st_size,
        modified=status.st_mtime_ns // 1_000_000,
    )


def _link(root: Path, file: SealedFile, target: Path) -> None:
    try:
        with contextlib.suppress(FileExistsError):
            os.link(root / file.name, target)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(
            f"no links can be made in {str(root)!r} ({error.strerror}); a table without copies needs a file system "
            "with hard links, and leave to write there"
        ) from error


def _ends(group: Any, column: str) -> tuple[int, int]:
    for at in range(group.num_columns):
        chunk = group.column(at)
        if chunk.path_in_schema == column:
            return chunk.statistics.min, chunk.statistics.max
    raise KeyError(column)


def _dropped_at(path: Path) -> float:
    """When a link was first found to be no longer listed."""
    note = path.with_suffix(".dropped")
    try:
        return note.stat().st_mtime
    except FileNotFoundError:
        note.touch(0o600)
        return time.time()


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(".parquet") and name != PLAIN_READERS]
    except FileNotFoundError:
        return []
