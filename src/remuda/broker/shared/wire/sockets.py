"""The Unix socket in a directory, however long its path is, and the process at its other end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from remuda.log.disk.directory import SOCKET
from remuda.model.errors import ForeignDirectory, StorageError

_LONGEST: Final = 100
"""The longest socket path, in bytes, that every system accepts."""


@contextlib.contextmanager
def short_name(directory: Path) -> Iterator[str]:
    """A path of the socket that is short enough, for as long as it is needed."""
    path = str(directory / SOCKET)
    if len(os.fsencode(path)) <= _LONGEST:
        yield path
        return
    if os.path.isdir("/proc/self/fd"):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{handle}/{SOCKET}"
        finally:
            os.close(handle)
        return
    with tempfile.TemporaryDirectory(prefix="remuda-") as folder:
        link = os.path.join(folder, "d")
        os.symlink(os.path.abspath(directory), link)
        yield os.path.join(link, SOCKET)


def listen(directory: Path, *, group: bool = False) -> socket.socket:
    """Listen in a directory. For the holder of its lock only: it removes the socket of the last host."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(directory) as name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(directory / SOCKET)
            listening.bind(name)
            os.chmod(directory / SOCKET, 0o660 if group else 0o600)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise StorageError(
            f"no socket can be created in {str(directory)!r}: {error.strerror}; nothing was changed. Choose a "
            "directory on a local disk, or open it with shared=False"
        ) from error
    except BaseException:
        listening.close()
        raise
    return listening


def connect(directory: Path) -> socket.socket:
    """A connection to the host of a directory; raises `OSError` while there is none."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(directory) as name:
            peer.settimeout(5)
            peer.connect(name)
        peer.settimeout(None)
        _check_host(directory, peer)
    except PermissionError as error:
        peer.close()
        raise ForeignDirectory(
            f"the process that has {str(directory)!r} open does not let user {os.geteuid()} in; nothing was changed. "
            "Use it as its owner, or have its owner open it with group=True"
        ) from error
    except BaseException:
        peer.close()
        raise
    return peer


def _check_host(directory: Path, peer: socket.socket) -> None:
    """Refuse a host that is neither ours, nor the directory's owner: somebody else may have replaced the socket."""
    host = peer_of(peer)
    if host is None:
        return
    found = os.stat(directory)
    if host[1] in (os.geteuid(), 0, found.st_uid):
        return
    if found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_IWOTH:
        return  # a directory of a group, whose members may all host it
    raise ForeignDirectory(
        f"the socket in {str(directory)!r} is answered by process {host[0]} of user {host[1]}, who does not own the "
        "directory; nothing was sent to it. Find out who put it there, and take the right to write from other users: "
        f"chmod go-w {directory}"
    )


def peer_of(connection: socket.socket) -> tuple[int, int, int] | None:
    """Process, user and group at the other end; None if the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, group = struct.unpack("3i", data)
        return pid, user, group
    return None
