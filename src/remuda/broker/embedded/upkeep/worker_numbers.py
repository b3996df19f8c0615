"""The worker number in ids, so that no two processes of a machine make the same id."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import IO

from remuda.model.errors import StorageError
from remuda.model.ids import WORKERS


class WorkerClaim:
    """A number from 0 to 1023 that is ours until the process ends, even if it ends badly: the system drops the lock."""

    def __init__(self, number: int, file: IO[str] | None) -> None:
        self.number = number
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def claim_worker(configured: int | None, directory: Path | None = None) -> WorkerClaim:
    """The configured number, or one that no other process of this user on this machine holds.

    Machines that exchange messages should configure theirs: they cannot see each other's claims.
    """
    if configured is not None:
        return WorkerClaim(configured, None)
    try:
        place = directory or Path(tempfile.gettempdir()) / f"remuda-workers-{os.getuid()}"
        place.mkdir(mode=0o700, exist_ok=True)
        _check_owned(place)
        return _claim_free(place)
    except OSError as error:
        raise StorageError(
            f"no worker number can be claimed in the folder for temporary files: {error}; nothing was changed. Fix "
            "that, set TMPDIR to another folder, or set the broker option 'worker'"
        ) from error


def _claim_free(place: Path) -> WorkerClaim:
    start = os.getpid() % WORKERS
    for step in range(WORKERS):
        number = (start + step) % WORKERS
        handle = os.open(place / f"{number:04d}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        file = os.fdopen(handle, "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        return WorkerClaim(number, file)
    raise StorageError(f"all {WORKERS} worker numbers in {place} are taken; set the broker option 'worker'")


def _check_owned(place: Path) -> None:
    """Refuse a folder that others can write to: they could hold every number, or redirect us to other files."""
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise StorageError(
            f"{str(place)!r} should be a folder that user {os.geteuid()} owns and nobody else can write to; "
            "remove it, or set the broker option 'worker'"
        )
