"""Metadata files: written whole, and on the disk before anything refers to them."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from remuda.model.errors import StorageError


def write_file(path: Path, data: bytes) -> None:
    """Create a file under a name that nobody else uses."""
    try:
        _write(path, data)
    except OSError as error:
        raise _error(path, error) from error


def create_file(path: Path, data: bytes) -> bool:
    """Create a file under a name that others may choose too; False where one of them was first."""
    temporary = _temporary(path)
    try:
        _write(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        return True
    except OSError as error:
        raise _error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put a file in another's place, in one step."""
    temporary = _temporary(path)
    try:
        _write(temporary, data, sync=sync)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _error(path, error) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _write(path: Path, data: bytes, *, sync: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
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
        f"{str(path)!r} cannot be written: {error.strerror}; the log itself is untouched, and its table is as it was. "
        "Free some space, or allow writing there; the next seal updates the table"
    )
