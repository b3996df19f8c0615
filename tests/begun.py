"""Logs that have begun, and in which nothing has happened."""

from __future__ import annotations

from pathlib import Path

from remuda.log.disk.directory import MARKER, DirectoryDisk


def begun(path: Path) -> Path:
    """The directory, which is a log from then on."""
    if not (path / MARKER).exists():
        disk = DirectoryDisk(path)
        disk.lock()
        disk.unlock()
    return path
