"""Calls to the operating system, whole where it may do them in part, and the files that grow by them."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path
from typing import Final

from remuda.gil import keeping_interpreter, raise_failed
from remuda.log.disk.disk_errors import NO_HANDLES, storage_error, storage_errors, unusable

_MOST_BYTES: Final = 32 * 1024
_CROWDED: Final = 0.00002
_CROWDED_FOR: Final = 1.0
_STALL: Final = 0.05
_DISTRUST: Final = 10.0
_now = time.monotonic


class QuickWriter:
    """Small writes that do not let go of the interpreter.

    `os.pwrite` lets other threads run meanwhile. A small write only copies a few bytes into the page cache, and is over
    before another thread has woken up: that thread then finds the interpreter taken again, and both have paid for
    nothing. With several busy threads this doubles the price of a message. A thread that is alone pays less for
    `os.pwrite`. So this keeps the interpreter for a while once a small write took so long that another thread must have
    had it, and lets it go again once the disk makes a write wait, as when it is overloaded.
    """

    def __init__(self) -> None:
        self._pwrite = keeping_interpreter("pwrite", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
        self._crowded_until = 0.0
        self._distrusted_until = 0.0 if self._pwrite is not None else float("inf")

    def write(self, handle: int, data: bytes, position: int) -> int:
        """As `os.pwrite`."""
        began = _now()
        if began >= self._crowded_until or len(data) > _MOST_BYTES or began < self._distrusted_until:
            written = os.pwrite(handle, data, position)
            if _now() - began > _CROWDED and len(data) <= _MOST_BYTES:
                self._crowded_until = began + _CROWDED_FOR
            return written
        kept: int = self._pwrite(handle, data, len(data), position)
        ended = _now()
        if ended - began > _STALL:
            self._distrusted_until = ended + _DISTRUST
        if kept < 0:
            try:
                raise_failed()
            except InterruptedError:
                return os.pwrite(handle, data, position)
        return kept


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


class DirectoryFile:
    """A file that grows at its end."""

    def __init__(self, handle: int, path: Path, position: int) -> None:
        self._handle = handle
        self._path = path
        self._position = position
        self._name_synced = False

    @property
    def handle(self) -> int:
        """For native code that appends by itself, and then sets `_position`."""
        return self._handle

    def write(self, data: bytes) -> None:
        position, size = self._position, len(data)
        try:
            written = quick_write(self._handle, data, position)
            if written < size:
                write_all(self._handle, data[written:], position + written)
        except OSError as error:
            raise storage_error(self._path.name, error) from error
        self._position = position + size

    def sync(self) -> None:
        try:
            datasync(self._handle)
        except OSError as error:
            # Whatever the reason, the system may have dropped what it could not write, and a second try would succeed
            # without it: this never passes.
            raise unusable(self._path.name, error) from error
        if not self._name_synced:
            # The data is worth nothing while a power loss can still take the file's name, also where an earlier
            # process made the file and was killed before it synced.
            try:
                sync_folder(self._path.parent)
            except OSError as error:
                known = storage_error if error.errno in NO_HANDLES else unusable
                raise known(self._path.name, error) from error
            self._name_synced = True

    def reserve(self, up_to: int) -> None:
        with storage_errors(self._path.name):
            size = os.fstat(self._handle).st_size
            if up_to > size:
                allocate(self._handle, size, up_to - size)

    def truncate(self, size: int) -> None:
        with storage_errors(self._path.name):
            os.ftruncate(self._handle, size)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
