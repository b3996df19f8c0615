"""O2, O5: no bloat beside a long transaction, indexes that are used, upgrades, privileges, restored dumps."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import psycopg
import pytest

from remuda import Bus
from remuda.outbox import Outbox
from remuda.outbox.admin import Administration
from remuda.outbox.database.connections import PostgresSession, SqliteSession, connect
from remuda.outbox.database.statements import LATEST, migration
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import LANES, OutboxError
from tests.outbox.kit import app, eventually
from tests.outbox.kit import connect as application
from tests.servers.postgres import Postgres, binaries, running_postgres

APPENDED = ("messages", "transactions", "progress")


def test_no_dead_rows_beside_a_long_transaction(postgres_url: str) -> None:
    """O2: xmin is pinned by a reader and by a writer; nothing but leases is updated, and the rate holds."""
    with app(postgres_url, batch=100) as made:
        reader, writer, connection = (psycopg.connect(postgres_url) for _ in range(3))
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM remuda_messages")
        writer.execute("CREATE TEMPORARY TABLE pinned (x int)")
        writer.execute("SELECT pg_current_xact_id()")
        lanes_read = []
        for _ in range(30):
            for part in range(5):
                made.bus.publish_many("order", range(20), key=str(part), transaction=connection)
                connection.commit()
            assert made.outbox.relay.pump() == 100
            lanes_read.append(_buffers_read(connection))
        assert lanes_read[-1] <= lanes_read[3] * 3 + 50, "reading does not become dearer with what was sent before"
        time.sleep(1.2)  # until the server's statistics are written
        for table in APPENDED:
            eventually(lambda table=table: _changes(connection, table)[0])  # type: ignore[misc]
            assert _changes(connection, table)[1:] == (0, 0), table
        for one in (reader, writer, connection):
            one.close()


def _changes(connection: Any, table: str) -> tuple[int, ...]:
    """How many rows of a table were inserted, how many changed or removed, and how many are dead."""
    connection.rollback()  # in a transaction the server's statistics stand still
    (found,) = connection.execute(
        "SELECT sum(n_tup_ins), sum(n_tup_upd + n_tup_del), sum(n_dead_tup) "
        f"FROM pg_stat_user_tables WHERE relname LIKE 'remuda_{table}_%'".encode()
    ).fetchall()
    return tuple(found)


def _buffers_read(connection: Any) -> int:
    """How many pages the relay's next look at the tables touches."""
    ((done, low),) = connection.execute(
        "SELECT done::text, low FROM remuda_progress ORDER BY number DESC LIMIT 1"
    ).fetchall()
    return _explained(connection, _read_values(done, low), analyze=True)["Shared Hit Blocks"]  # type: ignore[no-any-return]


def _read_values(done: str, low: int) -> dict[str, Any]:
    _, xmax, running = done.split(":")
    return {
        "running": running.split(",") if running else [], "xmax": xmax, "target": done, "position": 0, "seq": 0,
        "low": low, "above": low + 1, "lanes": list(range(LANES)), "count": 1000,
    }  # fmt: skip


def _explained(connection: Any, values: dict[str, Any], name: str = "read", *, analyze: bool = False) -> dict[str, Any]:
    from remuda.outbox.database.statements import Statements

    statement = Statements("postgres", Names(), "format")(name)
    how = "ANALYZE, BUFFERS, FORMAT JSON" if analyze else "FORMAT JSON"
    ((plan,),) = connection.execute(f"EXPLAIN ({how}) {statement.sql}".encode(), statement.values(values)).fetchall()
    found: dict[str, Any] = (plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]
    return found


def _scans(plan: dict[str, Any]) -> set[str]:
    """The tables that a plan reads from end to end."""
    found = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set()
    for below in plan.get("Plans", ()):
        found |= _scans(below)
    return found


@pytest.mark.slow
def test_hot_queries_stay_on_their_indexes_with_a_million_rows() -> None:
    """O2: reading, finding, holding, collecting."""
    with running_postgres(fsync="off", max_wal_size="4GB") as server:
        session = connect(server.url, Names())
        assert isinstance(session, PostgresSession)
        Administration(session).upgrade()
        connection = session.connection
        connection.execute(
            "INSERT INTO remuda_messages (slot, lane, head, priority, xid, seq, id, topic, mime_type, headers, body) "
            "SELECT 0, n % 8, false, 0, (n / 10 + 1000)::text::xid8, n, 'm' || n, 't', 'm', '{}', 'b' "
            "FROM generate_series(1, 1000000) n"
        )
        connection.execute(
            "INSERT INTO remuda_transactions SELECT 0, (n + 1000)::text::xid8, n FROM generate_series(0, 100000) n"
        )
        connection.execute(
            "INSERT INTO remuda_held (lane, status, attempts, next_at, expires_at, priority, created, id, topic, "
            "mime_type, headers, body) SELECT n % 8, 'failed', 50, now(), now() + interval '1 day', 0, now(), "
            "'h' || n, 't', 'm', '{}', 'b' FROM generate_series(1, 100000) n"
        )
        connection.execute(
            "INSERT INTO remuda_inbox (consumer, id) SELECT 'q', 'm' || n FROM generate_series(1, 200000) n"
        )
        connection.execute(
            "INSERT INTO remuda_progress (slot, lane, done, low, target_low, position, seq) "
            "SELECT 0, n % 8, '1000:1000:', 0, 0, 0, 0 FROM generate_series(1, 100000) n"
        )
        connection.execute("ANALYZE")
        big = {f"remuda_{table}_0" for table in APPENDED} | {"remuda_held", "remuda_inbox"}
        steady = _read_values("100990:101000:100990,100995", 99_990)
        behind = {
            **_read_values("1000:1000:", 0),
            "target": "200000:200000:",
            "position": 500,
            "seq": 5000,
            "above": 500,
        }
        lanes = list(range(LANES))
        asked: list[tuple[str, dict[str, Any]]] = [
            ("read", steady),
            ("read", behind),
            ("held_due", {"lanes": lanes, "count": 1000}),
            ("next_held", {"lanes": lanes}),
            ("keys_held", {"lanes": lanes}),
            ("find_held", {"id": "h5"}),
            ("find", {"id": "m5"}),
            ("collect_held", {"count": 1000}),
            ("inbox_known", {"consumer": "q", "id": "m5"}),
        ]
        for name, values in asked:
            assert not _scans(_explained(connection, values, name)) & big, name
        assert _explained(connection, steady, analyze=True)["Shared Hit Blocks"] < 20_000
        session.close()


@pytest.mark.parametrize("released", range(1, LATEST + 1))
def test_upgrades_keep_what_is_there(released: int, url: str) -> None:
    """O5: from each released schema."""
    session = connect(url, Names())
    for version in range(1, released + 1):
        session.script(migration(session.dialect, Names(), version))
    administration = Administration(session)
    assert administration.version() == released
    assert administration.upgrade() == list(range(released + 1, LATEST + 1))
    administration.close()
    with app(url) as made:
        connection = made.connect()
        made.bus.publish("order", 1, transaction=connection)
        connection.commit()
        connection.close()
        assert made.run() == [1]


@pytest.mark.parametrize("released", range(1, LATEST))
def test_what_older_tables_hold_is_sent_after_the_upgrade(released: int, url: str) -> None:
    """O5: a message that waits to be sent, and one that the broker refused."""
    names = ["lane", "priority", "id", "topic", "mime_type", "headers", "body"]
    row = [0, 0, "waiting", "order", "application/json", "{}", b"1"]
    session = connect(url, Names())
    for version in range(1, released + 1):
        session.script(migration(session.dialect, Names(), version))
    if isinstance(session, SqliteSession):
        moment: Any = 1.0
        session.connection.execute(
            f"INSERT INTO remuda_messages ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?)", row
        )
    else:
        moment = "2024-01-01"
        session.connection.execute(
            f"INSERT INTO remuda_messages (slot, head, {', '.join(names)}) "
            "VALUES (0, true, %s, %s, %s, %s, %s, %s, %s)",
            row,
        )
    held = dict(zip(names, row, strict=True)) | {"id": "held", "body": b"2", "status": "delayed", "attempts": 1}
    held |= {"next_at": moment, "created": moment}
    mark = "?" if isinstance(session, SqliteSession) else "%s"
    session.connection.execute(
        f"INSERT INTO remuda_held ({', '.join(held)}) VALUES ({', '.join([mark] * len(held))})", list(held.values())
    )
    session.close()
    with app(url) as made:
        assert sorted(made.run()) == [1, 2]


def test_tables_that_are_too_old_are_told(url: str) -> None:
    """O5."""
    session = connect(url, Names())
    session.script(migration(session.dialect, Names(), 1))
    session.close()
    bus = Bus("memory://")
    Outbox(bus, url, relay=False)
    connection = application(url)
    with pytest.raises(OutboxError, match="remuda db upgrade"):
        bus.publish("order", 1, transaction=connection)
    connection.close()
    bus.close()


def test_newer_tables_are_refused(url: str) -> None:
    """O5."""
    session = connect(url, Names())
    Administration(session).upgrade()
    if isinstance(session, SqliteSession):
        session.connection.execute("UPDATE remuda_schema SET version = 99")
    else:
        session.connection.execute("UPDATE remuda_schema SET version = 99")
    administration = Administration(session)
    with pytest.raises(OutboxError, match="newer"):
        administration.upgrade()
    with pytest.raises(OutboxError, match="upgrade"):
        administration.check()
    administration.close()


def test_least_privileges(postgres: Postgres, postgres_url: str) -> None:
    """O5: what the page on the outbox says an application needs is enough, and no more is had."""
    with app(postgres_url) as made:
        with psycopg.connect(postgres_url, autocommit=True) as owner:
            owner.execute("DROP ROLE IF EXISTS shop")
            owner.execute("CREATE ROLE shop LOGIN")
            owner.execute("GRANT INSERT ON remuda_messages, remuda_transactions TO shop")
            owner.execute("GRANT SELECT ON remuda_slot TO shop")
            owner.execute("GRANT USAGE ON remuda_seq, remuda_position TO shop")
            owner.execute("GRANT SELECT, UPDATE ON remuda_woken TO shop")
        connection = psycopg.connect(postgres_url.replace("bus@", "shop@"))
        made.bus.publish_many("order", [1, 2], transaction=connection)
        connection.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM remuda_messages")
        connection.close()
        assert made.run() == [1, 2]
        with psycopg.connect(postgres_url, autocommit=True) as owner:
            owner.execute("DROP OWNED BY shop")
            owner.execute("DROP ROLE shop")


def test_a_restored_dump(postgres: Postgres, postgres_url: str) -> None:
    """O5: on another server transactions are numbered anew. The relay refuses to guess, and a command puts it right."""
    dump = binaries() / "pg_dump"
    if not dump.exists():
        pytest.skip("this PostgreSQL came without pg_dump")
    with app(postgres_url) as made:
        connection = psycopg.connect(postgres_url)
        for _ in range(3):
            connection.execute("SELECT pg_current_xact_id()")
            connection.commit()
        made.bus.publish_many("order", range(5), transaction=connection)
        connection.commit()
        assert made.run() == list(range(5))
        for number in range(5, 8):
            made.bus.publish("order", number, key="k", transaction=connection)
            connection.commit()
        connection.close()
    text = subprocess.run([str(dump), postgres_url], capture_output=True, text=True, check=True).stdout
    with running_postgres(fsync="off") as other:
        psql = [str(binaries() / "psql"), "-q", "-v", "ON_ERROR_STOP=1", other.url]
        subprocess.run(psql, input=text, text=True, check=True, capture_output=True)
        with psycopg.connect(other.url, autocommit=True) as connection:
            # As if the first server had lived longer than the second.
            connection.execute("UPDATE remuda_lanes SET done = '4000000:4000000:'")
            connection.execute("UPDATE remuda_progress SET done = '4000000:4000000:'")
            connection.execute(
                "UPDATE remuda_messages SET xid = (xid::text::bigint + 5000000)::text::xid8 WHERE key = 'k'"
            )
            connection.execute(
                "UPDATE remuda_transactions t SET xid = (xid::text::bigint + 5000000)::text::xid8 WHERE position > 1"
            )
        with app(other.url) as heir:
            with pytest.raises(OutboxError, match="restored"):
                heir.outbox.relay.pump()
            with Administration.open(other.url, Names()) as administration:
                administration.restored()
            assert heir.run() == [5, 6, 7]
            connection = psycopg.connect(other.url)
            heir.bus.publish("order", 8, transaction=connection)
            connection.commit()
            connection.close()
            assert heir.run() == [5, 6, 7, 8]


def test_statements_per_message(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2: at most 0.05 in batches of a hundred, publishing and relaying together."""
    asked: list[str] = []
    real = PostgresSession.run
    with app(postgres_url) as made:
        connection = psycopg.connect(postgres_url)
        execute = psycopg.Cursor.execute

        def counted(self: Any, *arguments: Any, **options: Any) -> Any:
            asked.append("publish")
            return execute(self, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Cursor, "execute", counted)
            for _ in range(10):
                made.bus.publish_many("order", range(100), transaction=connection)
                connection.commit()
        connection.close()
        published = len(asked)
        assert published == 10
        feed_runs: list[str] = []

        def noted(self: Any, name: str, *arguments: Any, **options: Any) -> Any:
            feed_runs.append(name)
            return real(self, name, *arguments, **options)

        monkeypatch.setattr(PostgresSession, "run", noted)
        assert made.outbox.relay.pump() == 1000
    work = [name for name in feed_runs if name in ("snapshot", "read", "progress", "held_due", "next_held")]
    assert (published + len(work)) / 1000 <= 0.05


def test_a_bus_without_its_extra_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] in ("psycopg", "plyvel", "plyvel_next"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with Bus("memory://") as bus:
        outbox = Outbox(bus, "postgresql://nowhere/x", journal="/nonexistent/journal")
        with pytest.raises(ImportError, match=r"remuda\[postgres\]"):
            outbox.create_tables()
        with pytest.raises(ImportError, match=r"remuda\[journal\]"):
            bus.publish("order", 1)
