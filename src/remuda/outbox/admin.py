"""Administration of the outbox: its tables, the status of messages, retries, and removing expired rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from remuda.model.errors import InvalidOption
from remuda.outbox.database.connections import PostgresSession, SqliteSession, connect, dialect_of
from remuda.outbox.database.statements import LATEST, migration, restored
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import Collected, OutboxError, SchemaMissing, Status, Stored

_log = logging.getLogger("remuda.outbox")
_CHUNK: Final = 1000
_SLOTS: Final = 4


class Administration:
    """Administrative operations over one session with the outbox's database."""

    def __init__(self, session: PostgresSession | SqliteSession) -> None:
        self._session = session

    @classmethod
    def open(cls, url: str, names: Names) -> Administration:
        return cls(connect(url, names))

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Administration:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Tables

    def version(self) -> int:
        """The version of the tables; 0 if there are none."""
        run = self._session.run
        if not run("exists")[0][0]:
            return 0
        return int(run("version")[0][0])

    def upgrade(self) -> list[int]:
        """Create or upgrade the tables; returns the versions that were installed."""
        session = self._session
        before = self.version()
        if before > LATEST:
            raise OutboxError(
                f"the tables have version {before}, newer than this Remuda's {LATEST}; upgrade Remuda first"
            )
        done = []
        for version in range(before + 1, LATEST + 1):
            session.script(migration(session.dialect, session.names, version))
            done.append(version)
        return done

    def restored(self) -> None:
        """Repair the tables after a dump was restored: unsent messages will be sent, sent ones are not sent again."""
        self.check()
        if isinstance(self._session, PostgresSession):
            self._session.script(restored(self._session.names))

    def check(self) -> None:
        version = self.version()
        if version == 0:
            raise SchemaMissing("the outbox's tables do not exist; create them with `remuda db init URL`")
        if version != LATEST:
            raise OutboxError(
                f"the tables have version {version}, but this Remuda needs {LATEST}; run `remuda db upgrade URL`"
            )

    # Messages

    def status(self, message: str) -> Stored | None:
        if not isinstance(message, str):
            raise InvalidOption(f"an id is a string, not {message!r}")
        for query in ("find_held", "find"):
            for row in self._session.run(query, id=message):
                return _stored(row)
        return None

    def messages(self, status: Status, limit: int = 100) -> list[Stored]:
        """Messages of one status, the newest first."""
        found = self._session.run("list_held", status=status.value, count=limit)
        if status in (Status.SCHEDULED, Status.SUCCEEDED):
            found += self._session.run("list_sent", status=status.value, count=limit)
        return [_stored(row) for row in found[:limit]]

    def counts(self) -> dict[Status, int]:
        """The number of messages in each status."""
        held = {Status(status): number for status, number in self._session.run("count_held")}
        ((all_rows, passed),) = self._session.run("count_sent")
        counts = {status: held.get(status, 0) for status in Status}
        counts[Status.SCHEDULED] += all_rows - passed
        counts[Status.SUCCEEDED] += max(passed - sum(held.values()), 0)
        return counts

    def retry(self, ids: Sequence[str] | None = None) -> int:
        """Give failed and delayed messages a fresh count of attempts; all of them, or these."""
        if ids is not None and not (
            isinstance(ids, Iterable) and not isinstance(ids, str) and all(isinstance(one, str) for one in ids)
        ):
            raise InvalidOption(f"ids must be a list of strings, not {ids!r}")
        number = len(self._session.run("retry", ids=None if ids is None else list(ids)))
        if self._session.dialect == "postgres":
            self._session.run("wake")
        return number

    def relays(self) -> dict[str, list[int]]:
        """The running relays, with the lanes of each."""
        import json

        rows = self._session.run("relays")
        return {name: json.loads(lanes) if isinstance(lanes, str) else list(lanes or ()) for name, lanes in rows}

    # The collector

    def collect(self, keep_succeeded: float, keep_inbox: float) -> Collected:
        """Remove expired rows, in small steps. Rows of held messages carry their own expiry time."""
        gone: list[str] = []
        while rows := self._session.run("collect_held", count=_CHUNK):
            gone += [status for (status,) in rows]
        inbox = self.collect_inbox(keep_inbox)
        if isinstance(self._session, SqliteSession):
            sent = self._delete("collect_sent", keep_succeeded)
        else:
            sent = self._rotate(self._session, keep_succeeded)
        return Collected(sent + gone.count(Status.SUCCEEDED), gone.count(Status.FAILED), inbox)

    def collect_inbox(self, keep: float) -> int:
        """Forget messages that were handled longer ago than this."""
        return self._delete("collect_inbox", keep)

    def _delete(self, query: str, keep: float) -> int:
        total = 0
        while number := self._session.change(query, keep=keep, count=_CHUNK):
            total += number
        return total

    def _rotate(self, session: PostgresSession, keep: float) -> int:
        """Empty the slots whose messages are all sent and old, and direct new messages to the next one."""
        run = session.run
        ((current,),) = run("slot")
        removed = 0
        empty = {}
        for slot in range(_SLOTS):
            if slot == current:
                continue
            ((size,),) = run("slot_size", slot)
            if size and run("slot_is_old", slot, keep=keep)[0][0]:
                removed += self._truncate(session, slot, keep)
                ((size,),) = run("slot_size", slot)
            empty[slot] = not size
        ((age,),) = run("slot_began", current)
        # A slot that an open transaction still uses is skipped.
        order = [(current + step) % _SLOTS for step in range(1, _SLOTS)]
        following = next((slot for slot in order if empty[slot]), None)
        if age is not None and age > keep / 2 and following is not None:
            run("rotate", slot=following)
            if keep == 0 and run("slot_is_old", current, keep=keep)[0][0]:
                removed += self._truncate(session, current, keep)
        return removed

    def _truncate(self, session: PostgresSession, slot: int, keep: float) -> int:
        import psycopg

        try:
            with session.transaction():
                # Transactions that still write or read there go first; the next collection tries again.
                session.connection.execute("SET LOCAL lock_timeout = '200ms'")
                session.run("lock_slot", slot)
                if not session.run("slot_is_old", slot, keep=keep)[0][0]:
                    return 0
                ((size,),) = session.run("slot_size", slot)
                session.run("truncate_slot", slot)
                return int(size)
        except psycopg.errors.LockNotAvailable:
            _log.info("slot %d of the outbox is in use; the next collection will empty it", slot)
            return 0


def _stored(row: Sequence[Any]) -> Stored:
    id, topic, key, created, attempts, reason, status, next_at = row
    return Stored(id, topic, key, _seconds(created) or 0.0, attempts, reason, Status(status), _seconds(next_at))


def _seconds(value: Any) -> float | None:
    return value.timestamp() if isinstance(value, datetime) else value


def describe(url: str, names: Names) -> dict[str, Any]:
    """The state of the outbox at a URL, for `remuda db status`."""
    with Administration.open(url, names) as administration:
        version = administration.version()
        state: dict[str, Any] = {"database": dialect_of(url), "version": version, "latest": LATEST}
        if version == LATEST:
            state["messages"] = {status.value: number for status, number in administration.counts().items()}
            state["relays"] = administration.relays()
        return state
