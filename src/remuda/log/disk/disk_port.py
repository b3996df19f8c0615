"""What a log asks of a disk: the only door to the file system, narrow enough that a simulated one can stand in for it.

Names are relative and use `/`. A missing file raises `FileNotFoundError`, a full disk `DiskFull`, anything else that
keeps a file from being read or written `StorageError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class AppendFile(Protocol):
    """A file that grows at its end."""

    def write(self, data: bytes) -> None:
        """Append all of `data`."""

    def sync(self) -> None:
        """Return once everything written is on the disk, and the file's name too."""

    def reserve(self, up_to: int) -> None:
        """Make sure that the file can grow to `up_to` bytes, or raise `DiskFull` and change nothing."""

    def truncate(self, size: int) -> None:
        """Cut the file, or give back the room reserved behind `size`."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Files by name."""

    def list(self) -> list[str]: ...

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes from `start`; fewer than `length` where the file ends."""

    def open_append(self, name: str, position: int = 0) -> AppendFile:
        """A file to be written from `position`, created where there is none; what lies behind is cut."""

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """The whole file, which may come in parts, at once and on the disk, or not at all."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""

    def path(self, name: str) -> str | None:
        """Where the operating system finds the file; None where it cannot."""

    def lock(self) -> None:
        """Make this the one writer, or raise `DirectoryInUse`. The names that are found then survive a power loss, also
        those that a process before was killed over: what comes next builds on them."""

    def unlock(self) -> None: ...
