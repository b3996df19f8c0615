"""Which guests a directory has: each keeps a file there locked while it lives, and marks what it has begun beside it.

The system drops the lock when the process ends, however it ends. So the next host knows which guests to wait for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from remuda.broker.embedded.delivering.attempts import AttemptMarks, FormerGuests
from remuda.broker.shared.directory.unforked import unforked

FOLDER: Final = "guests"
_MARKS: Final = ".begun"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Presence:
    """This process among the guests of a directory."""

    def __init__(self, directory: Path, token: str, *, group: bool = False) -> None:
        self.token = token
        self._folder = directory / FOLDER
        self._path = self._folder / token
        self._group = group
        self._handle: int | None = None
        self._marks: AttemptMarks | None = None

    def enter(self) -> None:
        if self._handle is not None:
            return
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o770 if self._group else 0o700)
        with unforked:
            while not self._lock():
                pass  # a survey found the file before it was locked, took it for a leftover, and removed it

    def _lock(self) -> bool:
        """Whether the file that is locked is the one in the folder."""
        handle = os.open(self._path, _FLAGS, 0o660 if self._group else 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # others hold it only for the moment of a survey
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self._path)):
                    self._handle = handle
        finally:
            if self._handle is None:
                os.close(handle)
        return self._handle is not None

    def marks(self) -> AttemptMarks:
        """The marks of what this process has begun."""
        if self._marks is None:
            self._marks = AttemptMarks(f"{self._path}{_MARKS}")
        return self._marks

    def leave(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            remove(self._path)
            os.close(handle)

    def disown(self) -> None:
        """In a fork: the lock is the parent's."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def lives(directory: Path, token: str) -> bool:
    """Whether the guest's process is alive."""
    return _lives(directory / FOLDER / token)


def marks_of(directory: Path, token: str) -> AttemptMarks | None:
    """What a guest that is gone had begun."""
    path = f"{directory / FOLDER / token}{_MARKS}"
    return AttemptMarks.left_in(path) if os.path.exists(path) else None


def clear(directory: Path, token: str) -> None:
    """Remove the files of a guest that is gone."""
    if "/" not in token:
        remove(directory / FOLDER / token)


def survey(directory: Path) -> FormerGuests:
    """The guests that are alive, and the marks of those that are not, whose files are removed. For the holder of the
    directory's lock only."""
    folder, alive, marks = directory / FOLDER, set(), []
    try:
        names = [name for name in os.listdir(folder) if not name.endswith(_MARKS)]
    except OSError:
        return FormerGuests(frozenset(), ())
    for name in names:
        if _lives(folder / name):
            alive.add(name)
            continue
        if (folder / f"{name}{_MARKS}").exists():
            marks.append(AttemptMarks.left_in(str(folder / f"{name}{_MARKS}")))
        remove(folder / name)
    return FormerGuests(frozenset(alive), tuple(marks))


def remove(path: Path) -> None:
    for one in (path, f"{path}{_MARKS}"):
        with contextlib.suppress(OSError):
            os.unlink(one)


def _lives(path: Path) -> bool:
    with unforked:
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False
