"""Files that count while the server runs: users and certificates are read again when they change."""

from __future__ import annotations

import os
from collections.abc import Iterable

INTERVAL = 0.5
"""Seconds between two looks at the files."""


class Watched:
    """Some files, and what they looked like last."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._paths = tuple(os.fspath(path) for path in paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether a file is another one than at the last look."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_signature(path) for path in self._paths]


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
