"""Metadata files: written whole, and on the disk before anything refers to them."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final

from remuda.model.errors import StorageError

_GROUP: Final = 0o020


def make_folder(path: Path, *, like: Path | None = None) -> None:
    """Make a folder, and those above it, with the access that the one above it gives, or another: to the owner alone,
    or to the group too."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_folder(path.parent)
    shared = (like or path.parent).stat().st_mode & _GROUP
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        if shared:
            path.chmod(0o770)  # whatever the umask takes away


def open_file(path: Path, flags: int) -> int:
    """Open a file, made if there is none with the access that its folder gives."""
    handle = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if path.parent.stat().st_mode & _GROUP:
        with contextlib.suppress(PermissionError):  # a file of another member of the group
            os.fchmod(handle, 0o660)
    return handle


def write_file(path: Path, data: bytes) -> None:
    """Create a file under a name that nobody else uses."""
    try:
        _write(path, data)
    except OSError as error:
        raise _error(path, error) from error


def create_file(path: Path, data: bytes, *, private: bool = True) -> bool:
    """Create a file under a name that others may choose too; False where one of them was first. A `private` one is for
    whoever may use its folder, others are as the umask has it."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, private=private)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        return True
    except OSError as error:
        raise _error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes, *, sync: bool = True, private: bool = True) -> None:
    """Put a file in another's place, in one step."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, sync=sync, private=private)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _error(path, error) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _write(path: Path, data: bytes, *, sync: bool = True, private: bool = True) -> None:
    if private:
        make_folder(path.parent)
        handle = open_file(path, os.O_WRONLY | os.O_EXCL)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_EXCL | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def _error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{str(path)!r} cannot be written: {error.strerror}; the log and its tables are as they were. Free some space, "
        "or allow writing there; the next batch or seal tries again"
    )
