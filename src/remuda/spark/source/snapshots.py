"""Snapshots: a log as it is at one moment, held while Spark reads it.

Spark opens files by name when it comes to them, which may be long after they were listed. A folder of hard links under
`pins/` is a log of its own, of the files that there were, whatever the broker seals, shrinks or expires meanwhile. It
goes when this process ends; that of a process that was killed goes at the next read.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from remuda.log.disk.directory import MARKER
from remuda.log.segments import parse_sealed, parse_tail
from remuda.log.state import checkpoint, ledger

PINS: Final = "pins"
_FOLDERS: Final = ("checkpoint", "tail", "sealed")
_mine: dict[Path, tuple[object, Path]] = {}
"""The last snapshot of each log, and what was linked in it."""
_folders: set[Path] = set()
_guard: Final = threading.Lock()


def snapshot(root: Path) -> Path:
    """A folder that is the log as it is now, until this process ends; the log itself where no links can be made."""
    names = [*_listed(root, "tail"), *_listed(root, "sealed")]
    signature = (root.stat().st_ino, tuple(_inode(root / name) for name in names))
    known = _mine.get(root)
    if known is not None and known[0] == signature and known[1].is_dir():
        return known[1]
    place = _take(root)
    _mine[root] = (signature, place)
    return place


@contextlib.contextmanager
def hold(root: Path) -> Iterator[Path]:
    """A snapshot for as long as something is read from it."""
    place = _take(root)
    try:
        yield place
    finally:
        if place != root:
            shutil.rmtree(place, ignore_errors=True)


def _take(root: Path) -> Path:
    """Link the checkpoints first, since all that lies before their marks is in the files by then. Then the tail, then
    events, then messages: what is sealed meanwhile is in both, and what is collected meanwhile loses its messages
    before its events, never the other way round. Last comes the ledger, which notes that a file is collected before
    the file is removed.
    """
    folder = root / PINS / f"{socket.gethostname()}-{os.getpid()}"
    place = folder / uuid.uuid4().hex
    try:
        with _guard:
            if folder not in _folders:
                _sweep(root / PINS)
                if not _folders:
                    atexit.register(release)
                _folders.add(folder)
        for name in _FOLDERS:
            (place / name).mkdir(parents=True, exist_ok=True)
        _link(root, place, [MARKER])
        _link(root, place, _listed(root, "checkpoint"))
        _link(root, place, _listed(root, "tail"))
        _link(root, place, _listed(root, "sealed", "events-"))
        _link(root, place, _listed(root, "sealed", "messages-"))
        _link(root, place, [ledger.NAME])
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        return root  # a read-only directory, or a file system without links: then as it is
    return place


def log_of(place: str) -> str:
    """The log that a snapshot is of, or the place itself where it is not a snapshot."""
    parts = Path(place).parts
    return str(Path(*parts[:-3])) if len(parts) > 3 and parts[-3] == PINS else place


def is_snapshot(place: str) -> bool:
    return log_of(place) != place


def release() -> None:
    """Remove all snapshots of this process."""
    for folder in _folders:
        _remove(folder)
    _folders.clear()
    _mine.clear()


def _listed(root: Path, folder: str, prefix: str = "") -> list[str]:
    try:
        names = [f"{folder}/{name}" for name in sorted(os.listdir(root / folder)) if name.startswith(prefix)]
    except FileNotFoundError:
        return []
    return [name for name in names if parse_tail(name) or parse_sealed(name) or checkpoint.is_name(name)]


def _link(root: Path, place: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # sealed or collected between the look and the link
            os.link(root / name, place / name)


def _inode(path: Path) -> tuple[str, int]:
    try:
        return path.name, path.stat().st_ino
    except FileNotFoundError:
        return path.name, -1


def _sweep(pins: Path) -> None:
    host = socket.gethostname()
    for folder in pins.glob(f"{host}-*"):
        owner = folder.name.removeprefix(f"{host}-")
        if owner.isdigit() and not _lives(int(owner)):
            _remove(folder)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
