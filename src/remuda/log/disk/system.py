"""Calls to the operating system, whole where it may do them in part."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from remuda.log.disk.small_writes import QuickWriter

quick_write = QuickWriter().write
"""As `os.pwrite`, for small writes."""


def write_all(handle: int, data: bytes, position: int) -> None:
    written = quick_write(handle, data, position)
    while written < len(data):
        more = os.pwrite(handle, memoryview(data)[written:], position + written)
        if more == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += more


def read_all(handle: int, start: int, length: int) -> bytes:
    if length <= 0:
        return b""
    data = os.pread(handle, length, start)
    if len(data) == length:
        return data
    parts = [data]
    got = len(data)
    while data and got < length:
        data = os.pread(handle, length - got, start + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def datasync(handle: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(handle)
    else:
        os.fsync(handle)


def allocate(handle: int, start: int, length: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, start, length)
    except OSError as error:
        # Not every file system can reserve; there the write itself finds out.
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
