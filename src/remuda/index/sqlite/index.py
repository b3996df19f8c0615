"""The search index of a directory, in SQLite files of its own.

`<n>.sqlite` is one build of the index; the newest that is complete answers. A rebuild fills the next one beside it.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from remuda.index.copies import MOVED
from remuda.index.port import Document, IndexMoved, IndexUnusable, Reached
from remuda.index.query import Page, Query
from remuda.index.sqlite.database import Database, EmptyDatabase, storage_errors
from remuda.index.sqlite.searching import Search
from remuda.index.sqlite.writing import forget, sweep, write, write_documents
from remuda.model.errors import StorageError
from remuda.model.state import State

_NAME: Final = re.compile(r"(\d{6})\.sqlite")
_COMPLETE: Final = "complete"
_LOADED_AT_ONCE: Final = 20_000


class SqliteIndex:
    """Implements `SearchIndex` in a folder. Several processes may search it while one writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.RLock()
        self._reading_guard = threading.RLock()
        self._reader: Database | None = None
        self._writer: Database | None = None

    def reached(self) -> Reached | None:
        with self._guard, storage_errors(self._folder):
            found = self._filling()
            return None if found is None else found.reached()

    def apply(
        self, messages: Sequence[pa.RecordBatch], events: Sequence[pa.RecordBatch], after: Reached, reached: Reached
    ) -> None:
        with self._guard:
            database = self._need_filling()
            with database.transaction():
                self._check_current(database)
                now = database.reached()
                if now != after:
                    raise IndexMoved(
                        f"the index is at {tuple(now)}, not at {tuple(after)}: another process follows the log too"
                    )
                write(database, messages, events)
                database.set_reached(reached)

    def load(self, documents: Iterable[Document]) -> None:
        rest = iter(documents)
        while part := list(islice(rest, _LOADED_AT_ONCE)):
            with self._guard:
                database = self._need_filling()
                with database.transaction():
                    write_documents(database, part)

    def begin(self, reached: Reached) -> None:
        with self._guard:
            self._close_writer()
            self._make_folder()
            builds = self._builds()
            newest = max(builds, default=0)
            for number in builds:
                # A damaged one is removed when the new one is complete.
                with contextlib.suppress(IndexUnusable):
                    if not self._is_complete(number):
                        self._remove(number)
            self._writer = Database(self._path(newest + 1), create=True)
            with self._writer.transaction():
                self._writer.set_reached(reached)

    def finish(self) -> None:
        with self._guard:
            database = self._need_filling()
            with database.transaction():
                database.set_meta(_COMPLETE, 1)
            for number in self._builds():
                if self._path(number) != database.path:
                    self._remove(number)

    def forget(self, gone: Iterable[range]) -> None:
        with self._guard:
            database = self._need_filling()
            with database.transaction():
                for offsets in gone:
                    if offsets:
                        forget(database, offsets)
                sweep(database)

    def search(self, query: Query) -> Page:
        with self._reading() as database:
            return Page([]) if database is None else Search(database.connection, query).page()

    def counts(self) -> Mapping[str, Mapping[State, int]]:
        found: dict[str, dict[State, int]] = {}
        with self._reading() as database:
            if database is not None:
                rows = database.connection.execute(
                    "SELECT name, state, messages FROM counters JOIN queues ON queues.id = counters.queue "
                    "WHERE messages > 0 AND state != ? ORDER BY name, state",
                    (MOVED,),
                )
                for queue, state, number in rows:
                    found.setdefault(queue, {})[State(state)] = number
        return found

    def refresh(self) -> None:
        """What is committed can be found at once."""

    def drop(self) -> None:
        with self._guard:
            self.close()
            for number in self._builds():
                self._remove(number)
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def describe(self) -> str:
        return str(self._folder)

    def close(self) -> None:
        with self._guard, self._reading_guard:
            self._close_writer()
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Database | None]:
        """The newest complete build, as it is at one moment; None where there is none."""
        with self._reading_guard, storage_errors(self._folder):
            if self._reader is not None and not self._reader.path.exists():
                self._reader.close()  # another process has built a new one
                self._reader = None
            if self._reader is None:
                self._reader = self._open_newest()
            if self._reader is None:
                yield None
                return
            run = self._reader.connection.execute
            run("BEGIN")
            try:
                yield self._reader
            finally:
                run("ROLLBACK")

    def _filling(self) -> Database | None:
        """The build that was begun here, or the newest that is complete; None where there is none."""
        if self._writer is not None and not self._writer.path.exists():
            self._close_writer()
        if self._writer is None:
            self._writer = self._open_newest()
        return self._writer

    def _need_filling(self) -> Database:
        if database := self._filling():
            return database
        raise IndexUnusable(f"there is no search index in {str(self._folder)!r}; build it: remuda index build")

    def _check_current(self, database: Database) -> None:
        """Raise if another process has replaced this build: it must not be written any more."""
        if not database.path.exists():
            raise IndexMoved("another process has rebuilt the index")

    def _open_newest(self) -> Database | None:
        """The newest build that is complete; None where there is none.

        Another process may finish a build meanwhile and remove those before it: then there is a newer one to be found.
        """
        while True:
            builds = sorted(self._builds(), reverse=True)
            for number in builds:
                found = self._open_complete(number)
                if found is not None:
                    return found
            if all(self._path(number).exists() for number in builds):
                return None

    def _open_complete(self, number: int) -> Database | None:
        """A build; None if it is not complete, or is gone."""
        path = self._path(number)
        database = None
        try:
            database = Database(path)
            with storage_errors(path):
                complete = bool(database.meta(_COMPLETE))
            # A file is removed before its WAL: if it is still there, all of it was there when it was first read.
            if complete and path.exists():
                found, database = database, None
                return found
        except EmptyDatabase:
            pass
        except IndexUnusable:
            if path.exists():
                raise
        finally:
            if database is not None:
                database.close()
        return None

    def _is_complete(self, number: int) -> bool:
        found = self._open_complete(number)
        if found is not None:
            found.close()
        return found is not None

    def _builds(self) -> list[int]:
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{str(self._folder)!r} cannot be read: {error.strerror}") from error
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{str(self._folder)!r} cannot be created: {error.strerror}; name another place with --index"
            ) from error

    def _remove(self, number: int) -> None:
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path(number)}{ending}").unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06}.sqlite"

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
