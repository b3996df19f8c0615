"""What relays read: lanes leased by the database's clock, and the progress of each. One feed for each database."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec

from remuda.outbox.database.connections import PostgresSession, SqliteSession, connect, dialect_of, postgres_url
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import LANES, OutboxBatch, OutboxError, Row, Settled

_SLICE: Final = 0.05


class LeaseLost(OutboxError):
    """Another relay holds these lanes now, and sends what this one had read."""


class Feed(Protocol):
    """One relay's view of the outbox. Used by one thread."""

    lanes: list[int]

    def lease(self, seconds: float) -> None:
        """Take or keep a fair share of the lanes."""
        ...

    def renew(self, seconds: float) -> bool:
        """Renew the lease; False if the lanes must be shared out again by `lease`."""
        ...

    def release(self) -> None: ...
    def read(self, count: int) -> OutboxBatch | None: ...
    def advance(self, batch: OutboxBatch, held: Sequence[Settled]) -> None:
        """Record that a batch was sent, and store what was refused. Raises `LeaseLost`."""
        ...

    def checkpoint(self) -> None:
        """Record the progress of all lanes, even of those in which nothing was found."""
        ...

    def held_keys(self) -> set[str]: ...
    def held_due(self, count: int) -> list[Row]: ...
    def next_held(self) -> float | None: ...
    def settle(self, held: Sequence[Settled]) -> None: ...
    def wait(self, seconds: float, woken: threading.Event) -> None:
        """Wait until something may have been committed, or `woken` is set."""
        ...

    def close(self) -> None: ...


def open_feed(url: str, names: Names, relay: str) -> Feed:
    return PostgresFeed(url, names, relay) if dialect_of(url) == "postgres" else SqliteFeed(url, names, relay)


class _Leases:
    """Sharing lanes between relays, and held messages; the same for both databases."""

    session: PostgresSession | SqliteSession

    def __init__(self, relay: str) -> None:
        self.relay = relay
        self.lanes: list[int] = []
        self._share = LANES

    def _share_lanes(self, seconds: float) -> list[tuple[Any, ...]]:
        run, me = self.session.run, {"relay": self.relay}
        run("forget_dead_relays")
        run("register", lease=seconds, **me)
        self._share = run("share")[0][0]
        mine = [lane for (lane,) in run("my_lanes", **me)]
        if extra := mine[self._share :]:
            run("give_up", lanes=extra, **me)
        kept = mine[: self._share]
        free = [lane for (lane,) in run("free_lanes") if lane not in kept and lane not in extra]
        self.lanes = sorted(kept + free[: self._share - len(kept)])
        return run("take", lanes=self.lanes, lease=seconds, **me) if self.lanes else []

    def _is_fair(self, known: int, kept: int, relays: int, free: int) -> bool:
        share = -(-LANES // max(relays, 1))
        return bool(known) and kept == len(self.lanes) and share == self._share and not (free and kept < share)

    def held_keys(self) -> set[str]:
        return {key for (key,) in self.session.run("keys_held", lanes=self.lanes)}

    def held_due(self, count: int) -> list[Row]:
        return [Row(*row) for row in self.session.run("held_due", lanes=self.lanes, count=count)]

    def next_held(self) -> float | None:
        wait: float | None = self.session.run("next_held", lanes=self.lanes)[0][0]
        return wait

    def settle(self, held: Sequence[Settled]) -> None:
        with self.session.transaction():
            for one in held:
                self.session.run("settle", number=one.row.number, **_outcome(one))

    def _hold(self, held: Sequence[Settled]) -> None:
        for one in held:
            row = {name: getattr(one.row, name) for name in Row.__struct_fields__}
            self.session.run("hold", **row, **_outcome(one))

    def close(self) -> None:
        self.session.close()


def _outcome(one: Settled) -> dict[str, Any]:
    return {
        "status": one.status.value,
        "attempts": one.attempts,
        "reason": one.reason,
        "wait": one.wait,
        "keep": one.keep,
    }


class Cursor(msgspec.Struct, frozen=True):
    """The progress of a lane in PostgreSQL: everything visible to the snapshot `done` was sent, and of what is visible
    to `target` only, everything up to `position` and `seq`."""

    done: str
    low: int
    """Transactions that began after `done` have higher positions."""
    target: str | None = None
    target_low: int = 0
    position: int = 0
    seq: int = 0


class PostgresFeed(_Leases):
    """Reads the rows that a snapshot sees and the previous one did not. So no row is skipped, however late its
    transaction ends, and no row is updated."""

    def __init__(self, url: str, names: Names, relay: str) -> None:
        super().__init__(relay)
        self.session: PostgresSession = PostgresSession(postgres_url(url), names)
        self._cursors: dict[int, Cursor] = {}
        self._position = 0
        """The highest position assigned when the last snapshot was taken, so before the next one is."""
        self._next: Cursor | None = None
        self.session.connection.execute(f'LISTEN "{names.channel}"')

    def lease(self, seconds: float) -> None:
        with self.session.transaction():
            self.session.run("serialize_leases")
            taken = self._share_lanes(seconds)
        self._cursors = {lane: Cursor(*rest) for lane, *rest in taken}
        self._snapshot()

    def renew(self, seconds: float) -> bool:
        return self._is_fair(*self.session.run("renew", relay=self.relay, lease=seconds)[0])

    def release(self) -> None:
        with self.session.transaction():
            self.session.run("serialize_leases")
            self.session.run("give_up", lanes=list(range(LANES)), relay=self.relay)
            self.session.run("unregister", relay=self.relay)
            self.session.run("wake")
        self.lanes, self._cursors = [], {}

    def read(self, count: int) -> OutboxBatch | None:
        groups: dict[Cursor, list[int]] = {}
        for lane, cursor in self._cursors.items():
            groups.setdefault(cursor, []).append(lane)
        # All groups read up to the same snapshot, and are one group from then on.
        self._next = None
        found = (self._read(cursor, sorted(lanes), count) for cursor, lanes in groups.items())
        return next((batch for batch in found if batch is not None), None)

    def _read(self, cursor: Cursor, lanes: list[int], count: int) -> OutboxBatch | None:
        older = cursor.target is not None
        if cursor.target is None:
            if self._next is None:
                self._next = self._snapshot()
            latest = self._next
            if not _may_hold_more(cursor, latest, self._position):
                return None
            cursor = msgspec.structs.replace(cursor, target=latest.done, target_low=latest.low)
        while True:
            rows = self._rows(cursor, lanes, count)
            full = len(rows) >= count
            after = Cursor(cursor.target or "", cursor.target_low)
            if full:
                seq, _, position, *_ = rows[-1]
                # Nothing is left of this transaction for these lanes, so continue after it.
                place = (position + 1, 0) if seq is None else (position, seq)
                after = msgspec.structs.replace(cursor, position=place[0], seq=place[1])
            made = [Row(*row) for row in rows if row[0] is not None]
            if made:
                return OutboxBatch(tuple(lanes), made, after, full)
            for lane in lanes:
                self._cursors[lane] = after
            if not full:
                # Everything up to the target is sent. If that was an older snapshot, there may be more by now.
                return self._read(after, lanes, count) if older else None
            cursor = after

    def _rows(self, cursor: Cursor, lanes: list[int], count: int) -> list[tuple[Any, ...]]:
        _, xmax, running = _parts(cursor.done)
        return self.session.run(
            "read", running=running, xmax=str(xmax), target=cursor.target, position=cursor.position, seq=cursor.seq,
            low=cursor.low, above=max(cursor.position, cursor.low + 1), lanes=lanes, count=count,
        )  # fmt: skip

    def _snapshot(self) -> Cursor:
        snapshot, position = self.session.run("snapshot")[0]
        # The position known before the snapshot was taken; the one read together with it may be too high.
        low, self._position = self._position, position
        return Cursor(snapshot, low)

    def advance(self, batch: OutboxBatch, held: Sequence[Settled]) -> None:
        if held:
            with self.session.transaction():
                self._record(batch.lanes, batch.after)
                self._hold(held)
        else:
            self._record(batch.lanes, batch.after)
        for lane in batch.lanes:
            self._cursors[lane] = batch.after

    def checkpoint(self) -> None:
        for lane, cursor in self._cursors.items():
            self._record((lane,), cursor)

    def _record(self, lanes: Sequence[int], cursor: Cursor) -> None:
        recorded = self.session.run(
            "progress", lanes=list(lanes), relay=self.relay, **msgspec.structs.asdict(cursor)
        )  # fmt: skip
        if len(recorded) < len(lanes):
            raise LeaseLost(f"relay {self.relay} no longer holds the lanes {sorted(lanes)}")

    def wait(self, seconds: float, woken: threading.Event) -> None:
        left = seconds
        while left > 0 and not woken.is_set():
            for _ in self.session.connection.notifies(timeout=min(left, _SLICE), stop_after=1):
                return
            left -= _SLICE


def _parts(snapshot: str) -> tuple[int, int, list[str]]:
    xmin, xmax, running = snapshot.split(":")
    return int(xmin), int(xmax), running.split(",") if running else []


def _may_hold_more(cursor: Cursor, latest: Cursor, position: int) -> bool:
    """Whether anything can have been committed since: a new position was assigned, a new transaction began, or one that
    `done` lists as running has ended."""
    _, before, running = _parts(cursor.done)
    _, now, still = _parts(latest.done)
    if now < before:
        raise OutboxError(
            "this database was restored from a dump: its transactions have new numbers, and the outbox's tables refer "
            "to the old ones. Run `remuda db upgrade URL --restored`, which keeps everything unsent"
        )
    return position > cursor.low or now > before or not set(running) <= set(still)


class SqliteFeed(_Leases):
    """Reads by rowid, which in SQLite is the order of commits."""

    def __init__(self, url: str, names: Names, relay: str) -> None:
        super().__init__(relay)
        self.session: SqliteSession = connect(url, names)  # type: ignore[assignment]
        self._cursors: dict[int, int] = {}
        self._seen: Any = None

    def lease(self, seconds: float) -> None:
        with self.session.transaction():
            self._cursors = dict(self._share_lanes(seconds))

    def renew(self, seconds: float) -> bool:
        with self.session.transaction():
            known = self.session.change("renew_relay", relay=self.relay, lease=seconds)
            kept = self.session.change("renew_lanes", relay=self.relay, lease=seconds)
        return self._is_fair(known, kept, *self.session.run("crowd")[0])

    def release(self) -> None:
        with self.session.transaction():
            self.session.run("give_up", lanes=list(range(LANES)), relay=self.relay)
            self.session.run("unregister", relay=self.relay)
        self.lanes, self._cursors = [], {}

    def read(self, count: int) -> OutboxBatch | None:
        self._seen = self._stamp()
        ((newest,),) = self.session.run("newest")
        groups: dict[int, list[int]] = {}
        for lane, seq in self._cursors.items():
            groups.setdefault(seq, []).append(lane)
        # The group furthest behind first, so that in time all become one.
        for seq, lanes in sorted(groups.items()):
            rows = [Row(*row) for row in self.session.run("read", seq=seq, lanes=lanes, count=count)]
            if rows:
                return OutboxBatch(tuple(lanes), rows, rows[-1].number, len(rows) >= count)
            for lane in lanes:
                self._cursors[lane] = max(seq, newest)
        return None

    def advance(self, batch: OutboxBatch, held: Sequence[Settled]) -> None:
        with self.session.transaction():
            moved = self.session.change("progress", seq=batch.after, lanes=list(batch.lanes), relay=self.relay)
            if moved < len(batch.lanes):
                raise LeaseLost(f"relay {self.relay} no longer holds the lanes {sorted(batch.lanes)}")
            self._hold(held)
        for lane in batch.lanes:
            self._cursors[lane] = batch.after

    def checkpoint(self) -> None:
        """Nothing to do: `advance` records the progress of every batch."""

    def wait(self, seconds: float, woken: threading.Event) -> None:
        # A commit changes the file or its write-ahead log; looking at them costs no query.
        left = seconds
        while left > 0 and not woken.wait(min(left, _SLICE / 2)):
            if self._stamp() != self._seen:
                return
            left -= _SLICE / 2

    def _stamp(self) -> Any:
        stamps = []
        for path in (self.session.path, f"{self.session.path}-wal"):
            try:
                found = os.stat(path)
                stamps.append((found.st_mtime_ns, found.st_size))
            except OSError:
                stamps.append((0, 0))
        return stamps
