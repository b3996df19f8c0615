"""A directory of a real file system as a disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from remuda.log.system import allocate, datasync, read_all, sync_folder, write_all
from remuda.model.errors import (
    DirectoryInUse,
    DirectoryNotWritable,
    DiskFull,
    ForeignDirectory,
    StorageError,
    UnsupportedFormat,
)

MARKER: Final = "remuda.json"
LOCK: Final = "lock"
FORMAT: Final = 1
_TEMPORARY: Final = ".tmp"
_FOLDERS: Final = ("tail", "sealed", "index", "checkpoint")
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR})


class DirectoryDisk:
    """A directory that is Remuda's alone. Reading needs no lock and changes nothing."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self._root = Path(path)
        self._lock: int | None = None
        if create:
            _make(self._root)
        elif not self._root.is_dir():
            raise StorageError(f"there is no directory {str(self._root)!r}; nothing was created. Check the path")
        self._check_owner()

    def list(self) -> list[str]:
        names = []
        for folder, _, files in os.walk(self._root):
            below = os.path.relpath(folder, self._root)
            names += [name if below == "." else f"{below}/{name}" for name in files if not name.endswith(_TEMPORARY)]
        return sorted(names)

    def size(self, name: str) -> int:
        with _storage_errors(name):
            return os.stat(self._root / name).st_size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with _storage_errors(name):
            handle = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                wanted = os.fstat(handle).st_size - start if length is None else length
                return read_all(handle, start, wanted)
            finally:
                os.close(handle)

    def open_append(self, name: str, position: int = 0) -> DirectoryFile:
        path = self._root / name
        with _storage_errors(name):
            self._make_folder(path.parent)
            fresh = not path.exists()
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not fresh:
                os.ftruncate(handle, position)
            return DirectoryFile(handle, path, position)

    def write_atomic(self, name: str, data: bytes) -> None:
        path = self._root / name
        temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
        with _storage_errors(name):
            self._make_folder(path.parent)
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                try:
                    write_all(handle, data, 0)
                    os.fsync(handle)
                finally:
                    os.close(handle)
                os.replace(temporary, path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            sync_folder(path.parent)

    def rename(self, source: str, target: str) -> None:
        with _storage_errors(source):
            path = self._root / target
            self._make_folder(path.parent)
            os.replace(self._root / source, path)
            sync_folder(path.parent)
            if (self._root / source).parent != path.parent:
                sync_folder((self._root / source).parent)

    def remove(self, name: str) -> None:
        with _storage_errors(name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._root / name)
            sync_folder((self._root / name).parent)

    def path(self, name: str) -> str | None:
        return str(self._root / name)

    def lock(self) -> None:
        path = self._root / LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _not_writable(self._root, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = read_all(handle, 0, 32).split(b"\n")[0].decode("ascii", "replace")
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(f"{str(path)!r} cannot be locked: {error.strerror}") from error
            raise DirectoryInUse(
                f"directory {str(self._root)!r} is open in process {holder or '(unknown)'}; nothing was changed. "
                "Stop that process, connect to it, or choose another directory"
            ) from None
        try:
            # Another process may have put a marker here, or files, since this disk was made.
            self._check_owner()
            # Or it was killed after it made a folder here and before it made that last.
            sync_folder(self._root)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            if not (self._root / MARKER).exists():
                self.write_atomic(MARKER, json.dumps({"remuda": FORMAT}).encode() + b"\n")
            self._sweep()
        except BaseException as error:
            os.close(handle)
            if isinstance(error, OSError):
                raise (_full(LOCK) if error.errno in _NO_ROOM else _not_writable(self._root, error)) from error
            raise
        self._lock = handle

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_owner(self) -> None:
        try:
            marker = (self._root / MARKER).read_bytes()
        except FileNotFoundError:
            others = [name for name in os.listdir(self._root) if name != LOCK and not name.startswith(MARKER)]
            if others:
                raise ForeignDirectory(
                    f"directory {str(self._root)!r} holds files that are not Remuda's ({', '.join(sorted(others)[:3])}"
                    f"{', …' if len(others) > 3 else ''}) and no {MARKER}; nothing was changed. "
                    "Choose an empty or a new directory"
                ) from None
            return
        except OSError as error:
            raise StorageError(f"{str(self._root / MARKER)!r} cannot be read: {error.strerror}") from error
        try:
            version = json.loads(marker)["remuda"]
            if not isinstance(version, int):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            raise ForeignDirectory(
                f"{str(self._root / MARKER)!r} is not a marker of Remuda; nothing was changed. If the directory is "
                f'Remuda\'s and only this file was damaged, write {{"remuda": {FORMAT}}} into it'
            ) from None
        if version > FORMAT:
            raise UnsupportedFormat(
                f"directory {str(self._root)!r} has format {version}, this Remuda reads up to {FORMAT}; "
                "nothing was changed. Install a newer Remuda"
            )

    def _sweep(self) -> None:
        """Remove what a crash left half written. Only the holder of the lock may: nobody else writes here then."""
        for folder in (self._root, *(self._root / name for name in _FOLDERS)):
            if folder.is_dir():
                for name in os.listdir(folder):
                    if name.endswith(_TEMPORARY):
                        os.unlink(folder / name)

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)


class DirectoryFile:
    """A file that grows at its end."""

    def __init__(self, handle: int, path: Path, position: int) -> None:
        self._handle = handle
        self._path = path
        self._position = position
        self._name_synced = False

    def write(self, data: bytes) -> None:
        try:
            write_all(self._handle, data, self._position)
        except OSError as error:
            raise _storage_error(self._path.name, error) from error
        self._position += len(data)

    def sync(self) -> None:
        try:
            datasync(self._handle)
            if not self._name_synced:
                # The data is worth nothing while a power loss can still take the file's name, also where an earlier
                # process made the file and was killed before it synced.
                sync_folder(self._path.parent)
                self._name_synced = True
        except OSError as error:
            raise _storage_error(self._path.name, error) from error

    def reserve(self, up_to: int) -> None:
        with _storage_errors(self._path.name):
            size = os.fstat(self._handle).st_size
            if up_to > size:
                allocate(self._handle, size, up_to - size)

    def truncate(self, size: int) -> None:
        with _storage_errors(self._path.name):
            os.ftruncate(self._handle, size)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@contextlib.contextmanager
def _storage_errors(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _storage_error(name, error) from error


def _storage_error(name: str, error: OSError) -> StorageError:
    if error.errno in _NO_ROOM:
        return _full(name)
    return StorageError(f"{name!r} cannot be read or written: {error.strerror}; check the disk")


def _full(name: str) -> DiskFull:
    return DiskFull(
        f"no room on the disk for {name!r}; nothing was stored, everything accepted before is kept. "
        "Free some space, then publish again"
    )


def _not_writable(root: Path, error: OSError) -> DirectoryNotWritable:
    return DirectoryNotWritable(
        f"directory {str(root)!r} cannot be written: {error.strerror}; nothing was changed. "
        "Check its owner and permissions, or choose another directory"
    )


def _make(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _full(str(root)) from error
        if error.errno in _NOT_WRITABLE:
            raise _not_writable(root, error) from error
        raise StorageError(f"directory {str(root)!r} cannot be created: {error.strerror}") from error
