"""O1: every driver and framework that can be named as `transaction`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from remuda import Bus
from remuda.model.errors import RemudaError
from tests.outbox.kit import App, app


class Undo(Exception):
    """Ends a block without a commit."""


def alchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://").replace("sqlite://", f"sqlite+{driver}://")


async def asynchronous(made: App, connection: Any) -> None:
    """The same story for every connection that is awaited."""
    bus = made.bus
    async with bus.transaction(connection):
        await bus.publish_async("order", 1)
        await bus.publish_many_async("order", [2, 3])
        with suppress(Undo):
            async with bus.transaction(connection):
                await bus.publish_async("order", 98)
                raise Undo
        async with bus.transaction(connection):
            await bus.publish_async("order", 4, transaction=connection)
    with suppress(Undo):
        async with bus.transaction(connection):
            await bus.publish_async("order", 99)
            raise Undo
    with pytest.raises(RemudaError, match="await"):
        bus.publish("order", 97, transaction=connection)
    with pytest.raises(RemudaError, match="async with"):
        bus.transaction(connection).__enter__()


async def over_psycopg(made: App) -> None:
    async with await psycopg.AsyncConnection.connect(made.url) as connection:
        await asynchronous(made, connection)


async def over_asyncpg(made: App) -> None:
    connection = await asyncpg.connect(made.url)
    with pytest.raises(RemudaError, match="transaction"):
        await made.bus.publish_async("order", 97, transaction=connection)
    await asynchronous(made, connection)
    await connection.close()


async def over_an_asyncpg_pool(made: App) -> None:
    async with asyncpg.create_pool(made.url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        await asynchronous(made, connection)


async def over_aiosqlite(made: App) -> None:
    async with aiosqlite.connect(made.url.removeprefix("sqlite:///")) as connection:
        await asynchronous(made, connection)


def over_alchemy(driver: str) -> Callable[[App], Awaitable[None]]:
    async def run(made: App) -> None:
        engine = create_async_engine(alchemy_url(made.url, driver))
        async with AsyncSession(engine) as session:
            await asynchronous(made, session)
        async with engine.connect() as connection:
            await made.bus.publish_async("order", 96, transaction=connection)
            await connection.rollback()
        await engine.dispose()

    return run


POSTGRES = {
    "psycopg": over_psycopg,
    "asyncpg": over_asyncpg,
    "asyncpg pool": over_an_asyncpg_pool,
    "sqlalchemy psycopg": over_alchemy("psycopg"),
    "sqlalchemy asyncpg": over_alchemy("asyncpg"),
}
SQLITE = {"aiosqlite": over_aiosqlite, "sqlalchemy aiosqlite": over_alchemy("aiosqlite")}


@pytest.mark.parametrize("story", POSTGRES.values(), ids=POSTGRES)
def test_awaited_on_postgres(story: Callable[[App], Any], postgres_url: str) -> None:
    """O1."""
    with app(postgres_url) as made:
        asyncio.run(story(made))
        assert made.run() == [1, 2, 3, 4]


@pytest.mark.parametrize("story", SQLITE.values(), ids=SQLITE)
def test_awaited_on_sqlite(story: Callable[[App], Any], tmp_path: Path) -> None:
    """O1."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        asyncio.run(story(made))
        assert made.run() == [1, 2, 3, 4]


@pytest.mark.parametrize("scoped", [False, True])
def test_sqlalchemy(scoped: bool, url: str) -> None:
    """O1: sessions and connections, their savepoints and roll-backs."""
    with app(url) as made:
        engine = create_engine(alchemy_url(url, "psycopg") if "postgres" in url else url)
        maker = sessionmaker(engine)
        session: Any = scoped_session(maker) if scoped else maker()
        with made.bus.transaction(session):
            session.execute(text("SELECT 1"))
            made.bus.publish("order", 1)
            made.bus.publish_many("order", [2, 3], transaction=session)
            with suppress(Undo), session.begin_nested():
                made.bus.publish("order", 98)
                raise Undo
        made.bus.publish("order", 99, transaction=session)
        session.rollback()
        made.bus.publish("order", 4, transaction=session)
        session.commit()
        session.remove() if scoped else session.close()
        with engine.begin() as connection:
            made.bus.publish("order", 5, transaction=connection)
        with suppress(Undo), Session(engine) as other, other.begin():
            made.bus.publish("order", 97, transaction=other)
            raise Undo
        engine.dispose()
        assert made.run() == [1, 2, 3, 4, 5]


def test_threads_do_not_share_the_block(tmp_path: Path) -> None:
    """O1: what another thread publishes meanwhile is not part of this thread's transaction."""
    import threading

    with app(f"sqlite:///{tmp_path}/app.db") as made:
        connection = made.connect()
        with suppress(Undo), made.bus.transaction(connection):
            thread = threading.Thread(target=made.bus.publish, args=("order", 1))
            thread.start()
            thread.join()
            raise Undo
        connection.close()
        assert made.run() == [1]


def test_a_subclass_of_a_connection(tmp_path: Path) -> None:
    class Mine(sqlite3.Connection):
        pass

    with app(f"sqlite:///{tmp_path}/app.db") as made:
        connection = sqlite3.connect(tmp_path / "app.db", factory=Mine)
        with made.bus.transaction(connection):
            made.bus.publish("order", 1)
        connection.close()
        assert made.run() == [1]


DJANGO = """
import sys
import django
from django.conf import settings
url, port = sys.argv[1:]
engine = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
if url.startswith("postgresql"):
    engine = {"ENGINE": "django.db.backends.postgresql", "NAME": url.rpartition("/")[2], "USER": "bus",
              "HOST": "127.0.0.1", "PORT": port}
settings.configure(DATABASES={"default": engine}, USE_TZ=True)
django.setup()
from django.db import connection, transaction
from remuda import Bus
from remuda.model.errors import RemudaError
from remuda.outbox import Outbox

bus = Bus("memory://")
outbox = Outbox(bus, url)
outbox.create_tables()
got = []
bus.subscribe("order", queue="all")(lambda number: got.append(number))
with transaction.atomic():
    bus.publish("order", 1, transaction=connection)
    bus.publish_many("order", [2, 3], transaction="default")
    try:
        with transaction.atomic():
            bus.publish("order", 98, transaction=connection)
            raise KeyError
    except KeyError:
        pass
try:
    with transaction.atomic():
        bus.publish("order", 99, transaction=connection)
        raise KeyError
except KeyError:
    pass
with bus.transaction(connection):
    bus.publish("order", 4)
with bus.transaction("default"):
    bus.publish("order", 5)
try:
    bus.publish("order", 97, transaction=connection)
except RemudaError as error:
    assert "atomic" in str(error), error
else:
    raise AssertionError("a publish outside of atomic must be refused")
connection.close()
bus.run(until_idle=True)
bus.close()
assert got == [1, 2, 3, 4, 5], got
"""


def test_django(url: str, tmp_path: Path) -> None:
    """O1: `atomic`, nested and rolled back; in a process of its own, since Django is configured once."""
    import os
    import subprocess
    import sys
    from urllib.parse import urlsplit

    import remuda

    port = str(urlsplit(url).port or "") if "postgres" in url else ""
    environment = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, url, port],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("made_by", ["engine", "connection"])
def test_a_connection_of_sqlalchemy_that_commits_by_itself_is_refused(url: str, made_by: str) -> None:
    """O1: SQLAlchemy's transaction is none for the database if the isolation level is AUTOCOMMIT."""
    with app(url) as made:
        engine = create_engine(alchemy_url(url, "psycopg") if "postgres" in url else url)
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        with alone.connect() if made_by == "engine" else engine.connect() as connection:
            if made_by == "connection":
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(RemudaError, match="AUTOCOMMIT"):
                made.bus.publish("order", 1, transaction=connection)
        with Session(alone) as session, pytest.raises(RemudaError, match="AUTOCOMMIT"):
            made.bus.publish("order", 2, transaction=session)
        with engine.begin() as connection:
            made.bus.publish("order", 3, transaction=connection)
        engine.dispose()
        assert made.run() == [3]


def test_a_transaction_that_sqlalchemy_begins_by_an_event_counts(tmp_path: Path) -> None:
    """O1: for savepoints in SQLite, its driver is told to begin nothing, and an event sends the BEGIN."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        engine = create_engine(f"sqlite:///{tmp_path}/app.db")
        event.listen(engine, "connect", lambda raw, _: setattr(raw, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        with engine.connect() as connection:
            made.bus.publish("order", 1, transaction=connection)
            connection.rollback()
            made.bus.publish("order", 2, transaction=connection)
            connection.commit()
        engine.dispose()
        assert made.run() == [2]


@pytest.mark.parametrize("driver", ["aiosqlite", "psycopg", "asyncpg"])
def test_an_async_connection_of_sqlalchemy_that_commits_by_itself_is_refused(
    driver: str, tmp_path: Path, postgres_url: str
) -> None:
    """O1."""
    url = f"sqlite:///{tmp_path}/app.db" if driver == "aiosqlite" else postgres_url

    async def publish(bus: Bus) -> None:
        engine = create_async_engine(alchemy_url(url, driver), isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            with pytest.raises(RemudaError, match="AUTOCOMMIT"):
                await bus.publish_async("order", 1, transaction=connection)
        async with AsyncSession(engine) as session:
            with pytest.raises(RemudaError, match="AUTOCOMMIT"):
                await bus.publish_async("order", 2, transaction=session)
        await engine.dispose()

    with app(url) as made:
        asyncio.run(publish(made.bus))
        assert made.run() == []
