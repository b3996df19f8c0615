"""The spool: where processes that cannot reach the broker leave rows for it to take in.

`spool/<app>.<batch>/<part>-of-<parts>-<crc32c>.arrow` is a batch, put there by one rename; `spool/staging/` is where it
is put together. The numbers of an application's batches grow. Rows that no queue took are kept in `spool/refused/`,
with the reason. A batch is read only if all its parts are there and match the checksums in their names; its rows are
validated: they come from outside.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.disk.system import sync_folder
from remuda.log.sealed.arrow import pa
from remuda.log.sealed.table_schemas import MESSAGES_SCHEMA
from remuda.model.errors import InvalidOption, StorageError

SPOOL: Final = "spool"
STAGING: Final = "staging"
REFUSED: Final = "refused"
ONCE: Final = "once-"
"""Prefix of the name of an application that leaves a single batch and never comes again."""
MOST_NUMBER: Final = (1 << 63) - 1
_FIELDS: Final = (
    "name", "topics", "id", "object", "key", "timestamp", "mime_type", "headers", "priority", "expires", "due", "body",
)  # fmt: skip
SPOOL_SCHEMA: Final = pa.schema(
    [
        *(MESSAGES_SCHEMA.field(name) for name in _FIELDS),
        ("queue", pa.string()),
    ]
)
"""The fields of a message, and optionally the one queue that it goes to, whatever its topics."""
_APP: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_BATCH: Final = re.compile(r"([A-Za-z0-9_-]{1,100})\.(\d{20})")
_SUFFIX: Final = ".arrow"
_PART: Final = re.compile(r"(?P<part>\d{6})(?:-of-(?P<parts>\d{6}))?(?:-(?P<crc>[0-9a-f]{8}))?\.arrow")
_STAGED: Final = re.compile(r"[0-9a-f]{32}-([0-9a-f]{8})\.arrow")
REASON: Final = "reason.txt"
_CHUNK: Final = 1 << 20
_MOST_REASON: Final = 4000


class DamagedBatch(StorageError):
    """A batch is not what was put into the spool."""


class SpoolBatch(NamedTuple):
    """A batch that waits in the spool."""

    app: str
    number: int
    path: Path

    def parts(self) -> list[Path]:
        return [path for path in sorted(self.path.iterdir()) if _PART.fullmatch(path.name)]


def check_app(app: str) -> str:
    if not _APP.fullmatch(app):
        raise InvalidOption(f"an application's name must be 1 to 100 letters, digits, - or _, not {app!r}")
    return app


def check_chosen(app: str) -> str:
    """A name that somebody chose. Names of single batches are forgotten with them, so a batch under one of these would
    be published as often as it is written."""
    if app.startswith(ONCE):
        raise InvalidOption(f"names that begin with {ONCE!r} are for batches without one; choose another than {app!r}")
    return check_app(app)


def new_once() -> str:
    """A name that no other batch has, after those of all batches before it."""
    return f"{ONCE}{time.time_ns():016x}{uuid.uuid4().hex[:16]}"


def prepare(directory: str, identity: str | None = None) -> Path:
    """The spool of a log, or of a certain one. Raises `StorageError` where it is not: no broker, or another's, would
    read what is left there."""
    disk = DirectoryDisk.of_log(directory)
    if identity not in (None, disk.identity):
        raise StorageError(f"directory {directory!r} holds another log; nothing was left there. Check the path")
    root = Path(directory)
    # Other users than the broker's may leave batches: the umask and the group decide who can write here.
    (root / SPOOL / STAGING).mkdir(parents=True, exist_ok=True)
    return root / SPOOL


def stage(spool: Path, batches: Iterable[pa.RecordBatch]) -> tuple[str, int]:
    """Write rows to a file of their own; its name and how many they are. Nothing is left of it if that fails."""
    path = spool / STAGING / f"{uuid.uuid4().hex}{_SUFFIX}"
    rows = 0
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SPOOL_SCHEMA) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        _sync(path)
        staged = path.with_name(f"{path.stem}-{_checksum(path):08x}{_SUFFIX}")
        os.rename(path, staged)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return staged.name, rows


def discard(spool: Path, names: Iterable[str]) -> None:
    """Remove staged files."""
    for name in names:
        (spool / STAGING / name).unlink(missing_ok=True)


def lay(spool: Path, app: str, number: int, names: Iterable[str]) -> bool:
    """Make staged files the parts of a batch, all at once. False if the batch is there already."""
    if not 0 <= number <= MOST_NUMBER:
        raise InvalidOption(f"a batch's number must be from 0 to {MOST_NUMBER}, not {number}")
    target = spool / f"{check_app(app)}.{number:020d}"
    gathered = spool / STAGING / uuid.uuid4().hex
    gathered.mkdir()
    staged = list(names)
    for part, name in enumerate(staged):
        known = _STAGED.fullmatch(name)
        checksum = f"-{known[1]}" if known else ""
        os.rename(spool / STAGING / name, gathered / f"{part:06d}-of-{len(staged):06d}{checksum}{_SUFFIX}")
    sync_folder(gathered)
    try:
        os.rename(gathered, target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(gathered)
        return False
    sync_folder(spool)
    return True


def waiting(spool: Path) -> list[SpoolBatch]:
    """The batches to be taken in, those of one application in order."""
    try:
        entries = os.listdir(spool)
    except FileNotFoundError:
        return []
    found = [SpoolBatch(match[1], int(match[2]), spool / name) for name in entries if (match := _BATCH.fullmatch(name))]
    return sorted(found)


def rows_of(batch: SpoolBatch, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in order, without the first of them; raises `DamagedBatch`."""
    for path in _all_parts(batch):
        for piece in _pieces(path):
            if skip >= piece.num_rows:
                skip -= piece.num_rows
                continue
            yield piece.slice(skip)
            skip = 0


def check(batch: SpoolBatch) -> None:
    """Raise `DamagedBatch` unless every part is there, and is what was put there."""
    for path in _all_parts(batch):
        for _ in _pieces(path):
            pass


def _all_parts(batch: SpoolBatch) -> list[Path]:
    """The parts of a batch; raises `DamagedBatch` if one is missing. Those that an earlier version put there do not say
    how many there are."""
    paths = batch.parts()
    found = [match for path in paths if (match := _PART.fullmatch(path.name))]
    parts = max((int(match["parts"] or 0) for match in found), default=1)
    missing = sorted(set(range(max(parts, len(found)))) - {int(match["part"]) for match in found})
    if missing:
        raise DamagedBatch(f"{batch.path.name} lacks {len(missing)} of its parts: {', '.join(map(str, missing[:9]))}")
    return paths


def _pieces(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a part, once it is known to be what was put there."""
    named = f"{path.parent.name}/{path.name}"
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedBatch(f"{named} is not a plain file")
        match = _PART.fullmatch(path.name)
        if match is not None and match["crc"] is not None and _checksum(path) != int(match["crc"], 16):
            raise DamagedBatch(f"{named} does not match its checksum")
        with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(SPOOL_SCHEMA):
                raise DamagedBatch(f"{named} does not have the spool's columns: {reader.schema.names}")
            for at in range(reader.num_record_batches):
                piece = reader.get_batch(at)
                # Without this, offsets out of bounds would crash the process.
                piece.validate(full=True)
                yield piece
    except (pa.ArrowException, KeyError, ValueError, OverflowError, UnicodeDecodeError, MemoryError) as error:
        raise DamagedBatch(f"{named} has no readable rows: {error}") from error
    except OSError as error:
        if error.errno is None:  # Arrow's own, for files that end too soon
            raise DamagedBatch(f"{named} cannot be read: {error}") from error
        raise


def _checksum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def count_rows(batch: SpoolBatch) -> int:
    return sum(piece.num_rows for piece in rows_of(batch))


def remove(batch: SpoolBatch) -> None:
    """Remove a batch: in one step for readers, then file by file."""
    gone = batch.path.parent / STAGING / f"{uuid.uuid4().hex}.gone"
    gone.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(batch.path, gone)
        sync_folder(batch.path.parent)
        shutil.rmtree(gone, ignore_errors=True)


def set_aside(batch: SpoolBatch, refused: dict[int, str]) -> Path:
    """Keep the rows that no queue took, each with its reason."""
    folder = batch.path.parent / REFUSED
    folder.mkdir(exist_ok=True)
    path = folder / f"{batch.path.name}{_SUFFIX}"
    temporary = path.with_suffix(".tmp")
    schema = SPOOL_SCHEMA.append(pa.field("reason", pa.string()))
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        first = 0
        for piece in rows_of(batch):
            rows = [row for row in range(piece.num_rows) if first + row in refused]
            if rows:
                reasons = pa.array([refused[first + row] for row in rows], pa.string())
                kept = piece.take(pa.array(rows, pa.int64()))
                writer.write_batch(pa.RecordBatch.from_arrays([*kept.columns, reasons], schema=schema))
            first += piece.num_rows
    _sync(temporary)
    os.replace(temporary, path)
    sync_folder(folder)
    return path


def reject(batch: SpoolBatch, reason: str = "") -> Path:
    """Put a batch aside as it is, with the reason."""
    with contextlib.suppress(OSError):
        (batch.path / REASON).write_text(reason[:_MOST_REASON] + "\n", "utf-8", "backslashreplace")
    target = batch.path.parent / REFUSED / batch.path.name
    target.parent.mkdir(exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(batch.path, target)
    sync_folder(target.parent)
    return target


def sweep(spool: Path, before: float) -> None:
    """Remove what crashed tasks left in staging before a time (seconds since 1970)."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(spool / STAGING):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < before:
                    if entry.is_dir():
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
