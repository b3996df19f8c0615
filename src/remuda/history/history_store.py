"""The history's file: SQLite, beside the log or in memory."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from remuda.history import duration_buckets
from remuda.history.counting import Counts, Slot
from remuda.history.failure_kinds import Kind
from remuda.index.port import Reached
from remuda.model.errors import DiskFull, StorageError
from remuda.model.operations.worker_orders import Worker
from remuda.model.values.durations import DAY, HOUR, MINUTE

FOLDER: Final = "history"
ALL: Final = ""
"""Stands for all queues together."""
LENGTHS: Final = {MINUTE: 2 * HOUR, 15 * MINUTE: 2 * DAY, 6 * HOUR: 31 * DAY}
"""The lengths of slots, and how long slots of each are kept."""
_FAILURES_KEPT: Final = 31 * DAY
_FORMAT: Final = 1
_APPLICATION: Final = 0x524D4448
_COUNTS: Final = ("published", "done", "failed", "dead")


class HistoryUnusable(StorageError):
    """The history's file cannot be read or written. The log is unaffected: remove the file, and it is counted again."""


class HistoryMoved(Exception):
    """Another process has counted on."""


class Store:
    """One file, used by one thread at a time. Several processes may have it open."""

    def __init__(self, folder: Path | None) -> None:
        self.path = Path(":memory:") if folder is None else folder / "history.sqlite"
        self._lock = threading.RLock()
        with self._errors():
            if folder is not None:
                folder.mkdir(exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")  # what a power loss takes is counted again
        with self._transaction():
            if run("SELECT 1 FROM sqlite_master").fetchone() is None:
                for statement in _statements():
                    run(statement)
                run(f"PRAGMA application_id = {_APPLICATION}")
                run(f"PRAGMA user_version = {_FORMAT}")
        known = tuple(run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
        if known != (_APPLICATION, _FORMAT):
            raise HistoryUnusable(
                f"{str(self.path)!r} is not a history of this version of Remuda; nothing was changed. "
                "Remove it, and it is counted again from the log"
            )

    # Counting on

    def reached(self) -> Reached | None:
        found = dict(self._rows("SELECT name, value FROM meta"))
        return Reached(*(found[name] for name in Reached._fields)) if found else None

    def log(self) -> str:
        """The identity of the log that was counted."""
        return "".join(value for (value,) in self._rows("SELECT value FROM meta WHERE name = 'log'"))

    def begin(self, reached: Reached, log: str) -> None:
        """Start over with nothing but what people have muted."""
        with self._lock, self._errors(), self._transaction():
            for table in ("slots", "kinds", "failures", "parked"):
                self._connection.execute(f"DELETE FROM {table}")
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('log', ?)", (log,))
            self._set_reached(reached)

    def add(self, counts: Counts, after: Reached, reached: Reached) -> None:
        """Add what was counted between two points of the log. Raises `HistoryMoved` if it is not at the first."""
        with self._lock, self._errors(), self._transaction():
            if self.reached() != after:
                raise HistoryMoved
            for (length, queue, start), slot in _by_length(counts.slots).items():
                self._add_slot(length, queue, start, slot)
            self._add_failures(counts)
            self._set_reached(reached)

    def _add_slot(self, length: int, queue: str, start: int, slot: Slot) -> None:
        run = self._connection.execute
        where = (length, queue, start)
        known = run("SELECT wait, took FROM slots WHERE (length, queue, start) = (?, ?, ?)", where).fetchone()
        wait, took = (duration_buckets.packed(counts) for counts in (slot.wait, slot.took))
        if known is not None:
            wait, took = (
                duration_buckets.packed(duration_buckets.added((old, new))) if new else old
                for old, new in zip(known, (wait, took), strict=True)
            )
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTS)
        run(
            "INSERT INTO slots (length, queue, start, published, done, failed, dead, wait, took) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT DO UPDATE SET {added}, wait = excluded.wait, took = excluded.took",
            (*where, slot.published, slot.done, slot.failed, slot.dead, wait, took),
        )

    def _add_failures(self, counts: Counts) -> None:
        many = self._connection.executemany
        many(
            "INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET first = min(first, excluded.first), "
            "last = max(last, excluded.last), sample = excluded.sample",
            (
                (kind.key, *map(_storable, kind), _storable(found.sample), found.first, found.last)
                for (kind, _, _), found in counts.failures.items()
            ),
        )
        many(
            "INSERT INTO failures VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
            (
                (kind.key, minute * MINUTE // HOUR, queue, found.count)
                for (kind, queue, minute), found in counts.failures.items()
            ),
        )
        many(
            "INSERT OR REPLACE INTO parked VALUES (?, ?, ?, ?, ?)",
            ((one.queue, one.first, one.count, one.time, one.kind.key) for one in counts.parked),
        )

    def _set_reached(self, reached: Reached) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", reached._asdict().items())

    def forget_before(self, now: int) -> None:
        """Remove what is older than it is kept."""
        with self._lock, self._errors(), self._transaction():
            run = self._connection.execute
            for length, kept in LENGTHS.items():
                run("DELETE FROM slots WHERE length = ? AND start < ?", (length, now - kept))
            run("DELETE FROM failures WHERE hour < ?", ((now - _FAILURES_KEPT) // HOUR,))
            run("DELETE FROM kinds WHERE last < ?", (now - _FAILURES_KEPT,))
            run("DELETE FROM parked WHERE time < ?", (now - _FAILURES_KEPT,))
            run("DELETE FROM starts WHERE since < ?", (now - _FAILURES_KEPT,))

    # Reading

    def slots(self, length: int, since: int, queue: str | None) -> list[tuple[Any, ...]]:
        """Slots as rows: start, queue, the counts, and the packed times; of one queue, or of each (None)."""
        which = "queue <> ''" if queue is None else "queue = :queue"
        return self._rows(
            "SELECT start, queue, published, done, failed, dead, wait, took FROM slots "
            f"WHERE length = :length AND {which} AND start >= :since ORDER BY queue, start",
            {"length": length, "since": since, "queue": queue},
        )

    def kinds(self) -> list[tuple[str, Kind, str, int, int]]:
        """Kinds of failures: key, kind, a sample, when seen first and last."""
        found = self._rows("SELECT key, exception, place, sample, first, last FROM kinds")
        return [(key, Kind(exception, place), *rest) for key, exception, place, *rest in found]

    def failures(self, since: int) -> list[tuple[str, int, str, int]]:
        """Failures as rows: key, hour, queue, count."""
        return self._rows("SELECT key, hour, queue, count FROM failures WHERE hour >= ?", (since // HOUR,))

    def parked(self, queue: str, first: int, last: int) -> list[tuple[int, int, str, str]]:
        """Runs of messages among these that ended in a queue, in the order of time: first, count, exception, place."""
        return self._rows(
            "SELECT p.first, p.count, k.exception, k.place FROM parked p JOIN kinds k USING (key) "
            "WHERE p.queue = ? AND p.first <= ? AND p.first + p.count > ? ORDER BY p.time",
            (queue, last, first),
        )

    # What people and workers tell

    def muted(self) -> dict[str, tuple[str, int]]:
        """Muted kinds, each with who muted it and when."""
        return {key: (who, time) for key, who, time in self._rows("SELECT key, who, time FROM muted")}

    def mute(self, key: str, who: str, time: int) -> None:
        with self._lock, self._errors():
            self._connection.execute("INSERT OR REPLACE INTO muted VALUES (?, ?, ?)", (key, who, time))

    def unmute(self, key: str) -> None:
        with self._lock, self._errors():
            self._connection.execute("DELETE FROM muted WHERE key = ?", (key,))

    def note_workers(self, workers: Iterable[Worker]) -> None:
        rows = [(one.id, _storable(one.name), _storable(one.host), one.process, one.since) for one in workers]
        with self._lock, self._errors():
            self._connection.executemany("INSERT OR IGNORE INTO starts VALUES (?, ?, ?, ?, ?)", rows)

    def starts(self, since: int) -> list[tuple[str, str, int, int]]:
        """Starts of workers as rows: name, host, process, time."""
        return self._rows("SELECT name, host, process, since FROM starts WHERE since >= ? ORDER BY since", (since,))

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _rows(self, statement: str, values: Any = ()) -> list[Any]:
        with self._lock, self._errors():
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise DiskFull(
                    f"no room on the disk for {str(self.path)!r}; free some space, then try again"
                ) from error
            raise HistoryUnusable(f"the history {str(self.path)!r} cannot be used: {error}") from error


def _by_length(slots: dict[tuple[str, int], Slot]) -> dict[tuple[int, str, int], Slot]:
    """Minutes as slots of every length, of each queue and of all together."""
    summed: dict[tuple[int, str, int], Slot] = {}
    for (queue, minute), slot in slots.items():
        for length in LENGTHS:
            start = minute * MINUTE // length * length
            for name in (_storable(queue), ALL):
                into = summed.setdefault((length, name, start), Slot())
                for field in _COUNTS:
                    setattr(into, field, getattr(into, field) + getattr(slot, field))
                for own, others in ((into.wait, slot.wait), (into.took, slot.took)):
                    for bucket, count in others.items():
                        own[bucket] = own.get(bucket, 0) + count
    return summed


def _storable(text: str) -> str:
    """SQLite stores no lone surrogates, which names and reasons may hold."""
    return text.encode("utf-8", "replace").decode()


def _statements() -> list[str]:
    text = files("remuda.history").joinpath("schema.sql").read_text("utf-8")
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [statement for statement in plain.split(";") if statement.strip()]
