"""A disk that has no room, or no handles, for a while: at the write itself, as where room cannot be reserved."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from remuda.log.disk import AppendFile
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import DiskFull, StorageError, TooManyFiles

TROUBLES = {"full": DiskFull, "handles": TooManyFiles}


class StallingFile:
    """Passes everything on, until its disk says no."""

    def __init__(self, disk: StallingDisk, file: AppendFile) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: bytes) -> None:
        self._disk.writes += 1
        self._disk.check("write")
        self._file.write(data)

    def sync(self) -> None:
        self._disk.check("sync")
        self._file.sync()

    def reserve(self, up_to: int) -> None:
        self._disk.check("reserve")
        if self._disk.reserves:
            self._file.reserve(up_to)

    def truncate(self, size: int) -> None:
        self._disk.check("truncate")
        self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


class StallingDisk(DirectoryDisk):
    """A directory where the operations named in `failing` raise `error`."""

    def __init__(self, path: Path, *, reserves: bool = True) -> None:
        super().__init__(path)
        self.reserves = reserves
        self.failing: set[str] = set()
        self.error: type[StorageError] = DiskFull
        self.failures = 0
        self.writes = 0

    def check(self, operation: str) -> None:
        if operation in self.failing:
            self.failures += 1
            raise self.error("no room on the disk")

    def open_append(self, name: str, position: int = 0) -> StallingFile:  # type: ignore[override]
        self.check("open")
        return StallingFile(self, super().open_append(name, position))

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        self.check("atomic")
        super().write_atomic(name, data)
