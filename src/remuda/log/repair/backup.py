"""A consistent copy of a directory, taken beside the broker that writes it (L9)."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from remuda.log.disk.directory import FOLDERS, MARKER, DirectoryDisk
from remuda.log.disk.system import sync_folder
from remuda.log.repair.check import CheckReport, check
from remuda.log.repair.inventory import read_starts
from remuda.log.repair.recovery import closed_and_last, missing_after
from remuda.log.retrying import look_again
from remuda.log.segments import HEADER_BYTES, TailSegment, list_files
from remuda.log.state import checkpoint as checkpoints
from remuda.log.state import ledger, newest_segment
from remuda.log.tail.record_scan import RecordScan
from remuda.model.errors import InvalidOption

_CHUNK: Final = 4 << 20


class Backup(NamedTuple):
    """What was copied."""

    path: Path
    files: int
    bytes: int
    linked: int
    """Files that are hard links to the original's, which never change."""
    report: CheckReport
    """What a check of the copy found."""


def backup(source: str | os.PathLike[str], target: str | os.PathLike[str], *, link: bool = True) -> Backup:
    """Copy a directory to a new one: the log as of one moment, with all that a broker needs to continue from there.

    Sealed files are hard-linked where the file system can do it. The copy is checked before it gets the marker that
    makes it a Remuda directory.
    """
    origin, path = Path(source), Path(target)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidOption(f"{str(path)!r} exists and is not an empty directory; give one that is new or empty")
    if origin.resolve() in (path.resolve(), *path.resolve().parents):
        raise InvalidOption(f"{str(path)!r} is inside the directory to be copied; choose a target outside it")
    disk = DirectoryDisk.of_log(origin)

    def copy() -> Backup:
        try:
            return _Copy(disk, origin, path, link).take()
        except BaseException:
            _empty(path)
            raise

    return look_again(copy, "copied")


class _Copy:
    def __init__(self, disk: DirectoryDisk, origin: Path, path: Path, link: bool) -> None:
        self._disk = disk
        self._origin = origin
        self._path = path
        self._link = link
        self._files = self._bytes = self._linked = 0

    def take(self) -> Backup:
        target = DirectoryDisk(self._path)
        # The spool, then checkpoints, then the tail: rows that move on in the meantime are then copied twice, which
        # recovery recognizes; in the other order they might not be copied at all.
        self._copy_spool()
        kept = checkpoints.sequences(self._disk)
        for sequence in kept:
            name = checkpoints.name_of(sequence)
            with contextlib.suppress(FileNotFoundError):  # an old one, replaced meanwhile
                self._write(target, name, self._disk.read(name))
        begun = newest_segment.read(self._disk)
        tail = list_files(self._disk.list()).tail
        for segment in closed_and_last(self._disk, tail):
            self._copy_segment(segment)
        self._note_newest(target, begun)
        self._check_begin(target, kept)
        for name in self._disk.list():
            if name.startswith(("sealed/", "index/")) and not name.endswith(".tmp"):
                self._copy_sealed(name)
        with contextlib.suppress(FileNotFoundError):
            # Last: the ledger notes that a file is collected before the file is removed.
            self._write(target, ledger.NAME, self._disk.read(ledger.NAME))
        for folder in FOLDERS:
            if (self._path / folder).is_dir():
                sync_folder(self._path / folder)
        report = check(target)
        # Only the marker makes it a directory that a broker opens.
        self._write(target, MARKER, self._disk.read(MARKER))
        sync_folder(self._path)
        sync_folder(self._path.parent)
        return Backup(self._path, self._files, self._bytes, self._linked, report)

    def _note_newest(self, target: DirectoryDisk, begun: newest_segment.Newest | None) -> None:
        """Name the newest segment in the copy: the last that was copied, unless the original misses a newer one."""
        for segment in read_starts(target, list_files(target.list())):
            if begun is None or segment.sequence > begun.segment:
                begun = newest_segment.Newest(segment.sequence, segment.first)
        if begun is not None:
            newest_segment.write(target, begun)
            self._files += 1

    def _check_begin(self, target: DirectoryDisk, kept: list[int]) -> None:
        """Start over if the segment that the newest checkpoint continues in was sealed before the tail was listed."""
        newest_kept = checkpoints.read_all(target).valid[:1]
        segments = read_starts(target, list_files(target.list()))
        for checkpoint in newest_kept:
            if missing_after(checkpoint.mark, segments) and checkpoints.sequences(self._disk) != kept:
                raise FileNotFoundError(checkpoints.name_of(checkpoint.sequence))

    def _copy_segment(self, segment: TailSegment) -> None:
        """Copy a segment up to its last complete frame. Only the newest still grows; the others end there."""
        name = segment.name
        size = self._disk.size(name)
        end = HEADER_BYTES
        walk = RecordScan()
        for found in walk.records(self._disk, segment, HEADER_BYTES, size, bodies=False):
            end = found.end
        # Damage is copied as it is, so that a check of the copy reports it too.
        end = max([end, *(hole.end for hole in walk.holes)])
        self._stream(name, min(end, size))

    def _copy_sealed(self, name: str) -> None:
        path = self._path / name
        self._folder(path.parent)
        source = self._origin / name
        if self._link:
            try:
                os.link(source, path)
            except FileNotFoundError:
                raise
            except OSError:
                self._link = False  # another disk, or one without links
            else:
                self._files += 1
                self._linked += 1
                self._bytes += path.stat().st_size
                return
        self._stream(name, self._disk.size(name))

    def _stream(self, name: str, size: int) -> None:
        path = self._path / name
        self._folder(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            for start in range(0, size, _CHUNK):
                file.write(self._disk.read(name, start, min(_CHUNK, size - start)))
            file.flush()
            os.fsync(file.fileno())
        self._files += 1
        self._bytes += size

    def _copy_spool(self) -> None:
        if not (self._origin / "spool").is_dir():
            return
        from remuda.log import spool  # which loads Arrow

        for batch in spool.waiting(self._origin / spool.SPOOL):
            folder = self._path / spool.SPOOL / batch.path.name
            try:
                for part in batch.parts():
                    self._folder(folder)
                    shutil.copyfile(part, folder / part.name)
                    with (folder / part.name).open("rb") as file:
                        os.fsync(file.fileno())
                    self._files += 1
                    self._bytes += (folder / part.name).stat().st_size
            except FileNotFoundError:
                shutil.rmtree(folder, ignore_errors=True)  # taken in meanwhile: its rows are in the log
                continue
            if folder.is_dir():
                sync_folder(folder)
                sync_folder(folder.parent)

    def _write(self, target: DirectoryDisk, name: str, data: bytes) -> None:
        target.write_atomic(name, data)
        self._files += 1
        self._bytes += len(data)

    def _folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _empty(path: Path) -> None:
    """Leave nothing of a copy that failed."""
    if not (path / MARKER).exists():
        with contextlib.suppress(OSError):
            for entry in path.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()
