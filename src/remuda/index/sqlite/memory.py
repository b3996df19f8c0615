"""The same index in memory, for one process and one log that it follows from some point on."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from remuda.index.port import Reached
from remuda.index.sqlite.database import Database, storage_errors
from remuda.index.sqlite.index import SqliteIndex
from remuda.model.state import State

_NOWHERE: Final = Path(":memory:")


class MemoryIndex(SqliteIndex):
    """Implements `SearchIndex` with one build, which answers while it is filled."""

    def __init__(self) -> None:
        super().__init__(_NOWHERE)
        self._reading_guard = self._guard  # one connection does both

    def begin(self, reached: Reached) -> None:
        with self._guard:
            self._close_writer()
            self._writer = Database(None)
            with self._writer.transaction():
                self._writer.set_reached(reached)

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        self.close()

    def oldest(self, queue: str, states: Collection[State]) -> int | None:
        """The lowest offset of a copy in a queue in one of these states."""
        with self._reading() as database:
            if database is None:
                return None
            found = [
                database.connection.execute(
                    "SELECT min(offset) FROM copies WHERE state = ? AND queue = (SELECT id FROM queues WHERE name = ?)",
                    (state.value, queue),
                ).fetchone()[0]
                for state in states
            ]
        return min((offset for offset in found if offset is not None), default=None)

    def _filling(self) -> Database | None:
        return self._writer

    def _check_current(self, database: Database) -> None:
        pass

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Database | None]:
        with self._guard, storage_errors(_NOWHERE):
            yield self._writer
