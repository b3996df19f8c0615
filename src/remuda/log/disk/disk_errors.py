"""Errors of the operating system as errors of storage, which say what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from remuda.model.errors import DiskFull, StorageError, TooManyFiles

NO_HANDLES: Final = frozenset({errno.EMFILE, errno.ENFILE})
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def storage_errors(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(name, error) from error


def storage_error(name: str, error: OSError) -> StorageError:
    if error.errno in NO_ROOM:
        return full(name)
    if error.errno in NO_HANDLES:
        return TooManyFiles(
            f"{name!r} cannot be opened: {error.strerror}; nothing was stored, everything accepted before is kept. "
            "Close some files, or raise the limit (ulimit -n)"
        )
    if error.errno == errno.ELOOP:
        return StorageError(f"{name!r} is a link, which Remuda did not put there; nothing was opened. Remove it")
    if error.errno in (errno.EACCES, errno.EPERM):
        return StorageError(
            f"{name!r} cannot be read or written: {error.strerror}. Use the directory as its owner, or have its owner "
            "open it with group=True"
        )
    return unusable(name, error)


def unusable(name: str, error: OSError) -> StorageError:
    return StorageError(f"{name!r} cannot be read or written: {error.strerror}; check the disk")


def full(name: str) -> DiskFull:
    return DiskFull(
        f"no room on the disk for {name!r}; nothing was stored, everything accepted before is kept. "
        "Free some space, then publish again"
    )
