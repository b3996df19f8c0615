"""Which file system a directory is on: on a network, locks and sockets do not reach every machine that can write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from remuda.model.errors import StorageError

_MOUNTS: Final = "/proc/self/mountinfo"
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "ncpfs", "beegfs"}
)
_NETWORK_FUSE: Final = ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.smbnetfs")


def check_local(path: Path, *, force: bool = False) -> None:
    """Refuse a directory on a network file system, unless forced."""
    if force:
        return
    kind = kind_of(path)
    if kind in _NETWORK or kind.startswith(_NETWORK_FUSE):
        raise StorageError(
            f"directory {str(path)!r} is on a network file system ({kind}), where another machine could write to it "
            "at the same time and damage it; nothing was changed. Choose a local disk, connect by remuda://, or open "
            "it with force_network=True if only this machine uses it"
        )


def kind_of(path: Path, mounts: str = _MOUNTS) -> str:
    """The type of file system that a path is, or will be, on; empty if the system does not tell."""
    place = Path(os.path.realpath(path))
    best, kind = -1, ""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                fields = before.split(" ")
                if len(fields) < 5 or not after:
                    continue
                mounted = Path(fields[4].encode("latin-1", "replace").decode("unicode_escape"))
                if (place == mounted or mounted in place.parents) and len(mounted.parts) >= best:
                    best, kind = len(mounted.parts), after.split(" ")[0]
    except OSError:
        return ""
    return kind
