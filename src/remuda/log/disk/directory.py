"""A directory of a real file system as a disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import json
import logging
import os
import re
import stat
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from remuda.log.disk.disk_errors import NO_HANDLES, NO_ROOM, full, storage_error, storage_errors
from remuda.log.disk.system import DirectoryFile, read_all, sync_folder, write_all
from remuda.model.errors import (
    DirectoryInUse,
    DirectoryNotWritable,
    ForeignDirectory,
    StorageError,
    UnsupportedFormat,
)

MARKER: Final = "remuda.json"
LOCK: Final = "lock"
FORMAT: Final = 1
_LOG: Final = "log"
"""In the marker: what distinguishes a log from all others, and its copies do not differ in."""
_TEMPORARY: Final = ".tmp"
_GATHERED: Final = 1 << 20
FOLDERS: Final = ("tail", "sealed", "index", "checkpoint")
"""Those of the log."""
SOCKET: Final = "socket"
"""Where other processes reach the one that holds the directory."""
_SEARCH_INDEX: Final = re.compile(r"\d{6}\.sqlite(-\w+)?")
_UNLISTED: Final = frozenset({"spool", "guests"})
"""Folders that others may write to. They are not part of the log; their readers check what is in them."""
_log = logging.getLogger("remuda.log")
_SAFELY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Neither through a link nor waiting for the other end of a pipe."""
_NOT_WRITABLE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG}
)


SHARED: Final = "shared"
EXCLUSIVE: Final = "alone"


class Holder(NamedTuple):
    """The process that holds a directory, as its lock file says."""

    pid: int
    epoch: int
    shares: bool
    """Whether others can reach it through the directory's socket."""


def read_holder(note: bytes) -> Holder:
    lines = [*note.decode("ascii", "replace").split("\n"), "", "", ""]
    pid, epoch = (int(line) if line.isdigit() else 0 for line in lines[:2])
    return Holder(pid, epoch, lines[2] == SHARED)


class DirectoryDisk:
    """A directory that is Remuda's alone. Reading needs no lock and changes nothing.

    Files are for their owner only, or with `group` for its group too.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, group: bool = False, shared: bool = False
    ) -> None:
        self._root = Path(path)
        self._locks: list[int] = []
        self._opened: list[int] = []
        """Handles that are locked, or about to be; closed with this object where an interrupt prevented `unlock`."""
        self._group = group
        self._shared = shared
        self.epoch = 0
        """The number of this holder of the lock: higher than that of all before it."""
        if create:
            self._make_folder(self._root)
        elif not os.path.isdir(self._root):
            raise StorageError(
                f"there is no directory {str(self._root)!r}; nothing was created. Check the path, and that its volume "
                "is mounted here"
            )
        self._marker = self._check_owner()

    @classmethod
    def of_log(cls, path: str | os.PathLike[str]) -> Self:
        """The directory of a log that is there, to read it or to leave something in it.

        An empty directory is no log: it may be where a volume is not mounted. Raises `StorageError`.
        """
        disk = cls(path, create=False)
        if disk._marker is None:
            raise StorageError(
                f"directory {str(path)!r} holds no log: it has no {MARKER}; nothing was read or written. If the log is "
                "on a volume, mount it here; else check the path. A broker that is opened there begins a log"
            )
        return disk

    @property
    def identity(self) -> str:
        """What distinguishes this log from all others; empty for a log that only earlier versions have written to."""
        known = None if self._marker is None else self._marker.get(_LOG)
        return known if isinstance(known, str) else ""

    def check_log(self) -> None:
        """Raise unless the directory still holds the log that it held: its volume may be gone meanwhile."""
        now = DirectoryDisk.of_log(self._root).identity
        if self.identity not in ("", now):
            raise StorageError(
                f"directory {str(self._root)!r} holds another log than before; nothing more is read. Put the first one "
                "back, or open this one anew"
            )

    def list(self) -> list[str]:
        names: list[str] = []
        try:
            for folder, folders, files in os.walk(self._root, onerror=_raise):
                below = os.path.relpath(folder, self._root)
                if below == ".":
                    folders[:] = [name for name in folders if name not in _UNLISTED]
                    files = [name for name in files if name != SOCKET]
                names += [name if below == "." else f"{below}/{name}" for name in files]
        except OSError as error:
            if error.errno in NO_HANDLES:
                raise storage_error(str(self._root), error) from error
            raise StorageError(
                f"directory {str(self._root)!r} cannot be listed: {error.strerror}; nothing was changed. "
                "Check its owner and permissions"
            ) from error
        return sorted(name for name in names if not name.endswith(_TEMPORARY))

    def size(self, name: str) -> int:
        with storage_errors(name):
            return os.stat(self._root / name).st_size

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        with storage_errors(name):
            handle = os.open(self._root / name, os.O_RDONLY | _SAFELY)
            try:
                _check_regular(handle, name)
                wanted = os.fstat(handle).st_size - start if length is None else length
                return read_all(handle, start, wanted)
            finally:
                os.close(handle)

    def open_append(self, name: str, position: int = 0) -> DirectoryFile:
        path = self._root / name
        with storage_errors(name):
            self._make_folder(path.parent)
            handle = self._create(path, os.O_WRONLY)
            try:
                if os.fstat(handle).st_size:
                    os.ftruncate(handle, position)
            except BaseException:
                os.close(handle)
                raise
            return DirectoryFile(handle, path, position)

    def write_atomic(self, name: str, data: bytes | Iterable[bytes]) -> None:
        path = self._root / name
        temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
        with storage_errors(name):
            self._make_folder(path.parent)
            try:
                handle = self._create(temporary, os.O_WRONLY)
                try:
                    os.ftruncate(handle, 0)
                    at = 0
                    for part in _gathered((data,) if isinstance(data, bytes) else data):
                        write_all(handle, part, at)
                        at += len(part)
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
        with storage_errors(source):
            path = self._root / target
            self._make_folder(path.parent)
            os.replace(self._root / source, path)
            sync_folder(path.parent)
            if (self._root / source).parent != path.parent:
                sync_folder((self._root / source).parent)

    def remove(self, name: str) -> None:
        with storage_errors(name), contextlib.suppress(FileNotFoundError):
            os.unlink(self._root / name)
            sync_folder((self._root / name).parent)

    def path(self, name: str) -> str | None:
        return str(self._root / name)

    def lock(self) -> None:
        if self._locks:
            raise self._in_use()
        try:
            # The directory itself is locked: a file in it could be removed and created again beside its holder.
            self._inspect()
            self._lock_root()
            note = self._lock_file()
            # Another process may have put a marker here, or files, since this disk was made.
            self._inspect()
            self._marker = self._check_owner()
            before = read_holder(os.pread(note, 256, 0))
            # Or it was killed between creating a folder or renaming a file and syncing that.
            for folder in (self._root, *(self._root / name for name in FOLDERS)):
                if folder.is_dir():
                    sync_folder(folder)
            if not before.epoch:
                sync_folder(self._root.parent)  # every holder with an epoch has done so
            self.epoch = before.epoch + 1
            text = f"{os.getpid()}\n{self.epoch}\n{SHARED if self._shared else EXCLUSIVE}\n".encode()
            os.pwrite(note, text, 0)
            # Not synced: the processes it keeps out run on the same machine, and go down with it.
            os.ftruncate(note, len(text))
            if not self.identity:
                self._marker = {"remuda": FORMAT, **(self._marker or {}), _LOG: uuid.uuid4().hex}
                self.write_atomic(MARKER, json.dumps(self._marker).encode() + b"\n")
            self._sweep()
            self._locks = self._opened
        except BaseException as error:
            DirectoryDisk.unlock(self)
            if isinstance(error, OSError):
                raise (full(LOCK) if error.errno in NO_ROOM else _not_writable(self._root, error)) from error
            raise

    def unlock(self) -> None:
        self._locks = []
        self._close_opened()

    def _open(self, path: Path, flags: int, mode: int = 0) -> int:
        # In one call into C, so that no interrupt lands between the opening and the noting.
        self._opened.extend(map(os.open, (path,), (flags | os.O_CLOEXEC,), (mode,)))
        return self._opened[-1]

    def _close_opened(self) -> None:
        handles, self._opened = self._opened, []
        deque(map(os.close, handles), maxlen=0)

    def __del__(self) -> None:
        if getattr(self, "_opened", None):
            self._close_opened()

    def holder(self) -> Holder:
        """The process that holds the directory, or held it last."""
        try:
            return read_holder(self.read(LOCK, 0, 256))
        except (OSError, StorageError):
            return read_holder(b"")

    def check_epoch(self) -> None:
        """Raise if another process holds the directory now, or if it was removed: this process must not write then."""
        if self._locks and os.fstat(self._locks[-1]).st_nlink == 0:
            raise StorageError(
                f"directory {str(self._root)!r}, or its files, were removed while this process had it open: what was "
                "kept there is gone, and nothing more is written. Restore it from a copy, or open a new one"
            )
        if self._locks and (now := read_holder(os.pread(self._locks[-1], 256, 0))).epoch != self.epoch:
            raise StorageError(
                f"directory {str(self._root)!r} was taken over by process {now.pid} while this one was suspended; "
                "nothing more is written by this one"
            )

    def check_there(self) -> None:
        """Raise if the directory is not where it was when it was locked: what is written would be lost with it."""
        if self._locks and not self._is_there():
            raise StorageError(
                f"directory {str(self._root)!r} was removed, renamed or emptied while it was open; nothing more is "
                "written. Put it back, then open it again"
            )

    def _is_there(self) -> bool:
        try:
            same = os.path.samestat(os.fstat(self._locks[0]), os.stat(self._root))
            return same and os.path.exists(self._root / MARKER)
        except FileNotFoundError:
            return False

    def _lock_root(self) -> None:
        while True:
            handle = self._open(self._root, os.O_RDONLY | os.O_DIRECTORY)
            self._flock(handle)
            if os.path.samestat(os.fstat(handle), os.stat(self._root)):
                return
            self._close_opened()  # another directory was put in its place meanwhile

    def _lock_file(self) -> int:
        """Lock the file that names the holder; the first versions lock nothing else."""
        path = self._root / LOCK
        handle = self._open(path, os.O_RDWR | os.O_CREAT | _SAFELY, self._file_mode)
        self._check_created(handle, path)
        self._flock(handle)
        return handle

    def _flock(self, handle: int) -> None:
        how = fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            try:
                fcntl.flock(handle, how)
            except BlockingIOError:
                if self.holder().pid not in (0, os.getpid()):
                    raise
                gc.collect()  # an interrupted open in this process may still hold it
                fcntl.flock(handle, how)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(
                    f"directory {str(self._root)!r} cannot be locked: {error.strerror}; nothing was changed. "
                    "Choose a directory on a local disk"
                ) from error
            raise self._in_use() from None

    def _in_use(self) -> DirectoryInUse:
        return DirectoryInUse(
            f"directory {str(self._root)!r} is open in process {self.holder().pid or '(unknown)'}; nothing was "
            "changed. Stop that process, connect to it, or choose another directory"
        )

    def _inspect(self) -> None:
        """Refuse a directory that holds what Remuda did not put there, before anything is opened or cut."""
        root = os.stat(self._root)
        user = os.geteuid()
        if not os.access(self._root, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if user not in (0, root.st_uid) and not self._group:
            raise ForeignDirectory(
                f"directory {str(self._root)!r} belongs to user {root.st_uid}, not to user {user} who opens it; "
                "nothing was changed. Open it as its owner, or allow its group"
            )
        narrowed = [self._root] if self._narrow(self._root, root) else []
        reachable = root.st_mode & (stat.S_IXOTH if self._group else stat.S_IXGRP | stat.S_IXOTH)
        owners = {user, root.st_uid}
        for folder, folders, files in os.walk(self._root, onerror=_raise):
            if folder == str(self._root):
                folders[:] = [name for name in folders if name not in _UNLISTED]
                files = [name for name in files if name != SOCKET or not _is_socket(os.path.join(folder, name))]
                for name in sorted({*FOLDERS, "spool"}.intersection(files)):
                    raise ForeignDirectory(
                        f"{os.path.join(folder, name)!r} is a file, where Remuda has a folder; nothing was changed. "
                        "Find out who put it there, then remove it or put the folder in its place"
                    )
            for path in (Path(folder) / name for name in (*folders, *files)):
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(path)
                    self._inspect_one(path, found, owners)
                    if reachable and self._narrow(path, found):
                        narrowed.append(path)
        if narrowed:
            _log.warning(
                "other users could write %s%s; its mode was narrowed, so that only its owner%s can", narrowed[0],
                f" and {len(narrowed) - 1} more of its files and folders" if narrowed[1:] else "",
                " and its group" if self._group else "",
            )  # fmt: skip

    def _narrow(self, path: Path, found: os.stat_result) -> bool:
        """Let nobody else write here: who can, may replace the socket and change the log."""
        excess = found.st_mode & (stat.S_IWOTH if self._group else stat.S_IWGRP | stat.S_IWOTH)
        if excess:
            try:
                os.chmod(path, stat.S_IMODE(found.st_mode) & ~excess)
            except OSError as error:
                raise ForeignDirectory(
                    f"other users may write {str(path)!r}, and so change the log; nothing was changed. Have its owner "
                    f"take that from them: chmod -R go-w {self._root}"
                ) from error
        return bool(excess)

    def _inspect_one(self, path: Path, found: os.stat_result, owners: set[int]) -> None:
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            kind = "a link" if stat.S_ISLNK(found.st_mode) else "neither a file nor a folder"
        elif found.st_uid not in owners and not self._group:
            kind = f"owned by user {found.st_uid}"
        else:
            return
        raise ForeignDirectory(
            f"{str(path)!r} is {kind}, which Remuda did not put there; nothing was changed. "
            "Find out who did, then remove it or put the file itself in its place"
        )

    def _create(self, path: Path, flags: int) -> int:
        """Open a file for writing, made if there is none; never through a link."""
        handle = os.open(path, flags | os.O_CREAT | _SAFELY, self._file_mode)
        try:
            self._check_created(handle, path)
        except BaseException:
            os.close(handle)
            raise
        return handle

    @property
    def _file_mode(self) -> int:
        return 0o660 if self._group else 0o600

    def _check_created(self, handle: int, path: Path) -> None:
        _check_regular(handle, path.name)
        if self._group and os.fstat(handle).st_size == 0:
            with contextlib.suppress(PermissionError):  # a file of another member of the group
                os.fchmod(handle, 0o660)  # whatever the umask takes away

    def _check_owner(self) -> dict[str, Any] | None:
        """The marker; None in a directory where there is nothing else either."""
        try:
            text = self.read(MARKER)
        except FileNotFoundError:
            ours = {LOCK, SOCKET, "guests"}  # made by those who open a new directory at the same time
            others = [name for name in os.listdir(self._root) if name not in ours and not name.startswith(MARKER)]
            if "index" in others and self._holds_search_index():
                others.remove("index")
            if others and (self._root / MARKER).exists():
                return self._check_owner()  # another process opens the new directory at the same time
            if others:
                raise ForeignDirectory(
                    f"directory {str(self._root)!r} holds files that are not Remuda's ({', '.join(sorted(others)[:3])}"
                    f"{', …' if len(others) > 3 else ''}) and no {MARKER}; nothing was changed. "
                    "Choose an empty or a new directory"
                ) from None
            return None
        try:
            marker: dict[str, Any] = json.loads(text)
            version = marker["remuda"]
            if type(version) is not int or version < 1:
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ForeignDirectory(
                f"{str(self._root / MARKER)!r} is not a marker of Remuda; nothing was changed. If the directory is "
                f'Remuda\'s and only this file was damaged, write {{"remuda": {FORMAT}}} into it'
            ) from None
        if version > FORMAT:
            raise UnsupportedFormat(
                f"directory {str(self._root)!r} has format {version}, this Remuda reads up to {FORMAT}; "
                "nothing was changed. Install a newer Remuda"
            )
        return marker

    def _holds_search_index(self) -> bool:
        """Whether the folder `index` is a search index, which may be older than the first message."""
        try:
            return all(_SEARCH_INDEX.fullmatch(name) for name in os.listdir(self._root / "index"))
        except OSError:
            return False

    def _sweep(self) -> None:
        """Remove what a crash left half written. Only the holder of the lock may: nobody else writes here then."""
        for folder in (self._root, *(self._root / name for name in FOLDERS)):
            if folder.is_dir():
                for name in os.listdir(folder):
                    if name.endswith(_TEMPORARY):
                        os.unlink(folder / name)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents, and sync their names."""
        try:
            if folder.is_dir():
                return
            self.check_there()
            if not folder.parent.is_dir():
                self._make_folder(folder.parent)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o770 if self._group else 0o700)
                if self._group:
                    folder.chmod(0o770)
            if not folder.is_dir():
                raise FileExistsError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            sync_folder(folder.parent)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise full(str(folder)) from error
            if error.errno in _NOT_WRITABLE:
                raise _not_writable(folder, error) from error
            raise storage_error(str(folder), error) from error


def _not_writable(root: Path, error: OSError) -> DirectoryNotWritable:
    return DirectoryNotWritable(
        f"directory {str(root)!r} cannot be written: {error.strerror}; nothing was changed. "
        "Check its owner and permissions, or choose another directory"
    )


def _check_regular(handle: int, name: str) -> None:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise StorageError(f"{name!r} is not a plain file; nothing was read or written. Remove it")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a folder that went away meanwhile holds nothing
        raise error


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in parts that are large enough to be worth a write."""
    some: list[bytes] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size >= _GATHERED:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)
