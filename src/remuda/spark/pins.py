"""Holding sealed files while Spark reads them.

Spark opens files by name when it comes to them, which may be long after they were listed. Hard links under `pins/` keep
what was listed, whatever the broker shrinks or expires meanwhile. They go when this process ends; those of a process
that was killed go at the next read.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
from pathlib import Path
from typing import Final

PINS: Final = "pins"
_mine: set[Path] = set()


def pin(root: Path, name: str) -> Path:
    """A path to the file as it is now; raises `FileNotFoundError` when it is gone."""
    source = root / name
    folder = root / PINS / f"{socket.gethostname()}-{os.getpid()}"
    link = folder / f"{source.stem}-{source.stat().st_ino}{source.suffix}"
    if link.exists():
        return link
    try:
        if folder not in _mine:
            _sweep(root / PINS)
            folder.mkdir(parents=True, exist_ok=True)
            _mine.add(folder)
            if len(_mine) == 1:
                atexit.register(release)
        os.link(source, link)
    except FileNotFoundError:
        raise
    except OSError:
        return source  # a read-only directory, or one without links: then as it is
    return link


def release() -> None:
    """Let everything go that this process holds."""
    for folder in _mine:
        _remove(folder)
    _mine.clear()


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
