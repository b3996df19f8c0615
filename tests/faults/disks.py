"""Disks that fail on demand, around a real directory."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from remuda.log.disk import AppendFile
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import DiskFull, StorageError


class FailingFile:
    """Passes everything on, until its disk says no."""

    def __init__(self, disk: FailingDisk, file: AppendFile) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes) -> None:
        if self._disk.write_error is not None:
            raise self._disk.write_error
        self._file.write(data)

    def sync(self) -> None:
        if self._disk.sync_error is not None:
            raise self._disk.sync_error
        self._file.sync()

    def reserve(self, up_to: int) -> None:
        if self._disk.full:
            raise DiskFull("no room on the disk")
        self._file.reserve(up_to)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


class FailingDisk(DirectoryDisk):
    """A directory whose next reservation, write or sync can be made to fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.full = False
        self.write_error: StorageError | None = None
        self.sync_error: StorageError | None = None

    def open_append(self, name: str, position: int = 0) -> FailingFile:  # type: ignore[override]
        return FailingFile(self, super().open_append(name, position))

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        if self.full:
            raise DiskFull(f"no room on the disk for {name!r}")
        super().write_atomic(name, data)


def input_output_error() -> StorageError:
    cause = OSError(errno.EIO, "Input/output error")
    return StorageError(f"cannot be read or written: {cause.strerror}; check the disk")
