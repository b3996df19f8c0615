"""Counts the syncs that this process asks for from Python, which are all of Remuda's and none of SQLite's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count


class SyncCount:
    """How many there were, known when the counting is over."""

    total = 0


@contextmanager
def counted_syncs() -> Iterator[SyncCount]:
    datasync, sync = os.fdatasync, os.fsync
    calls = count()
    seen = SyncCount()

    def counting_datasync(handle: int) -> None:
        next(calls)
        datasync(handle)

    def counting_sync(handle: int) -> None:
        next(calls)
        sync(handle)

    os.fdatasync, os.fsync = counting_datasync, counting_sync  # type: ignore[assignment]
    try:
        yield seen
    finally:
        os.fdatasync, os.fsync = datasync, sync
        seen.total = next(calls)
