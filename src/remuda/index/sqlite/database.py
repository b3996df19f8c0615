"""One file of the index: its connection, its layout, and cached look-ups of queues and labels."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from remuda.index.port import IndexUnusable, Reached
from remuda.model.errors import DiskFull, StorageError

FORMAT: Final = 3
CHUNK: Final = 1 << 18
"""Offsets whose words are in one full-text table. A table is dropped when none of its messages is left."""
_APPLICATION: Final = 0x524D4458
_LABELS_KEPT: Final = 100_000
_WAIT: Final = 30.0


class EmptyDatabase(IndexUnusable):
    """The file was created, and the process that did was killed before it made the tables."""


class Database:
    """A build of the index in its file, which is opened or created."""

    def __init__(self, path: Path | None, *, create: bool = False) -> None:
        """Without a path it is created in memory."""
        self.path = path or Path(":memory:")
        self._labels: dict[tuple[object, ...], int] = {}
        self._queues: dict[str, int] = {}
        with storage_errors(self.path):
            if path is None:
                place, create = ":memory:", True
            elif not create and not path.exists():
                raise IndexUnusable(f"there is no search index {str(path)!r}")
            else:
                # A file that was removed just now must not be created again, with nothing in it.
                place = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
            self.connection = sqlite3.connect(
                place, timeout=_WAIT, isolation_level=None, check_same_thread=False, uri=True
            )
            try:
                self._prepare(create)
            except BaseException:
                self.connection.close()
                raise

    def _prepare(self, create: bool) -> None:
        run = self.connection.execute
        # Tables first: another process that makes them in between has then marked the file as well.
        is_empty = run("SELECT 1 FROM sqlite_master").fetchone() is None
        version, application = (run(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
        if create:
            run("PRAGMA page_size = 8192")
            run("PRAGMA journal_mode = WAL")
            with self.transaction():
                for statement in _statements():
                    run(statement)
                run(f"PRAGMA application_id = {_APPLICATION}")
                run(f"PRAGMA user_version = {FORMAT}")
        elif is_empty:
            raise EmptyDatabase(f"there is nothing in {str(self.path)!r}")
        elif (application, version) != (_APPLICATION, FORMAT):
            raise IndexUnusable(
                f"{str(self.path)!r} is not a search index of this version of Remuda; nothing was changed. "
                "Rebuild it: remuda index build"
            )
        run("PRAGMA synchronous = NORMAL")  # what a power loss takes is read from the log again
        run("PRAGMA cache_size = -65536")
        run("PRAGMA temp_store = MEMORY")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write as the only writer, and all of it or nothing."""
        with storage_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                # What was looked up may have been added by the transaction that is rolled back.
                self._labels.clear()
                self._queues.clear()
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def meta(self, name: str) -> int | None:
        row = self.connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def set_meta(self, name: str, value: int) -> None:
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def reached(self) -> Reached:
        return Reached(*(self.meta(name) or 0 for name in Reached._fields))

    def set_reached(self, reached: Reached) -> None:
        for name, value in zip(Reached._fields, reached, strict=True):
            self.set_meta(name, value)

    def queue(self, name: str) -> int:
        """The number of a queue, which gets one when it is first used."""
        known = self._queues.get(name)
        if known is None:
            self.connection.execute("INSERT OR IGNORE INTO queues (name) VALUES (?)", (name,))
            known = self._queues[name] = self.connection.execute(
                "SELECT id FROM queues WHERE name = ?", (name,)
            ).fetchone()[0]
        return known

    def label(self, name: str, topics: tuple[str, ...], object: str | None, mime_type: str) -> int:
        """The number of a label: what many messages share."""
        parts = (name, topics, object, mime_type)
        known = self._labels.get(parts)
        if known is None:
            known = self._find_label(parts, topics or (name,), object)
            if len(self._labels) >= _LABELS_KEPT:
                self._labels.clear()
            self._labels[parts] = known
        return known

    def _find_label(self, parts: tuple[object, ...], topics: tuple[str, ...], object: str | None) -> int:
        text = msgspec.json.encode(parts).decode()
        run = self.connection.execute
        found = run("SELECT id FROM labels WHERE label = ?", (text,)).fetchone()
        if found is not None:
            return int(found[0])
        number = run("INSERT INTO labels (label, object) VALUES (?, ?)", (text, object)).lastrowid
        assert number is not None
        for topic in {topic.casefold() for topic in topics}:
            run("INSERT INTO label_topics VALUES (?, ?)", (topic, number))
        return number

    def words_table(self, chunk: int) -> str:
        """The full-text table of a chunk, created when it is first used."""
        table = f"words_{chunk}"
        run = self.connection.execute
        if run("SELECT 1 FROM chunks WHERE chunk = ?", (chunk,)).fetchone() is None:
            run("INSERT INTO chunks VALUES (?)", (chunk,))
            # Nothing but which words are in which message: no text, no places, no sizes.
            run(
                f"CREATE VIRTUAL TABLE {table} USING "
                "fts5(text, content='', tokenize='ascii', detail=none, columnsize=0)"
            )
        return table

    def close(self) -> None:
        self.connection.close()


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as Remuda's."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_FULL:
            raise DiskFull(f"no room on the disk for {str(path)!r}; free some space, then try again") from error
        if code == sqlite3.SQLITE_BUSY:
            raise StorageError(f"{str(path)!r} is being written by another process; try again") from error
        raise IndexUnusable(f"the search index {str(path)!r} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise IndexUnusable(
            f"the search index {str(path)!r} is damaged: {error}. The log is unaffected: rebuild the index "
            "with remuda index build"
        ) from error


def _statements() -> list[str]:
    text = files("remuda.index.sqlite").joinpath("schema.sql").read_text("utf-8")
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [statement for statement in plain.split(";") if statement.strip()]
