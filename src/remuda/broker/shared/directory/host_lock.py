"""The lock of a shared directory, and the socket that comes with it."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from remuda.broker.embedded.locks.forks import closed_after_fork
from remuda.broker.shared.directory.unforked import unforked
from remuda.broker.shared.host.guest_connection import Gate, Listener
from remuda.broker.shared.wire import sockets
from remuda.log.disk.directory import SOCKET, DirectoryDisk

if TYPE_CHECKING:
    from collections.abc import Callable


class HostDisk(DirectoryDisk):
    """A directory whose host others reach through a socket in it.

    They can connect as soon as it is locked, so that none has to look for a host again and again while the log is read;
    they are answered once the host runs. Locking it again changes nothing.
    """

    def __init__(self, path: Path, *, group: bool) -> None:
        super().__init__(path, group=group, shared=True)
        self._listen: Callable[[], socket.socket] = lambda: sockets.listen(path, group=group)
        self._listening: socket.socket | None = None
        self._socket_file = path / SOCKET
        self._bound: tuple[int, int] | None = None
        """Device and inode of our socket's file."""

    def lock(self) -> None:
        if self._listening is not None:
            return
        with unforked:
            super().lock()
            try:
                self._bind()
            except BaseException:
                super().unlock()
                raise
            closed_after_fork(self)

    def disown(self) -> None:
        """In a fork: close the handles. The lock and the socket are the parent's, and end with it."""
        self.unlock()

    def _bind(self) -> socket.socket:
        with unforked:
            self._listening = self._listen()
            self._bound = self._found()
            return self._listening

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(self._socket_file)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def listen_again(self) -> socket.socket | None:
        """A new socket if the old one's file was removed, so that others can connect again; None if it is there."""
        return None if self._listening is None or self._found() == self._bound else self._bind()

    def unlock(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        super().unlock()

    def listener(self, gate: Gate) -> Listener:
        """The listener for guests, once the directory is locked."""
        assert self._listening is not None
        return _DirectoryListener(self, self._listening, gate)


class _DirectoryListener(Listener):
    """A socket whose file can be removed by anyone who may write in the directory."""

    def __init__(self, disk: HostDisk, listening: socket.socket, gate: Gate) -> None:
        super().__init__(listening, gate, local=True)
        self._disk = disk

    def again(self) -> Listener | None:
        listening = self._disk.listen_again()
        return None if listening is None else _DirectoryListener(self._disk, listening, self.gate)


def is_held(path: Path) -> bool:
    """Whether some process holds a directory's lock. Cheaper than trying to lock it, and leaves no trace."""
    with unforked:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False  # locking it will raise why it cannot be opened
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False
