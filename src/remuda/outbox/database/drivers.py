"""Writing messages through the caller's own connection or session, so that they are part of its transaction.

Drivers are recognized by the name of their module, so that none is imported that the application does not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from remuda.model.errors import InvalidOption, RemudaError
from remuda.model.messages import Messages
from remuda.model.values.extras import MissingExtra
from remuda.outbox.database import rows
from remuda.outbox.database.statements import Dialect, Statement, Statements, Style
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import OutboxError, SchemaMissing

_KNOWN: Final = (
    "a sqlite3, aiosqlite, psycopg or asyncpg connection, an SQLAlchemy session or connection, or a Django connection"
)


class Driver:
    """Adapter for one kind of connection. The methods of one that `is_async` are coroutines."""

    is_async = False

    def __init__(self, connection: Any, dialect: Dialect, style: Style) -> None:
        self.connection = connection
        self.dialect = dialect
        self.style = style

    def check(self) -> None:
        """Raise if the connection would commit the message at once, outside a transaction."""

    def execute(self, sql: str, values: Any) -> Any:
        raise NotImplementedError

    def execute_many(self, sql: str, values: list[Any]) -> Any:
        raise NotImplementedError

    def insert(self, sql: str, values: Any) -> Any:
        """Run an INSERT … RETURNING; returns whether it inserted a row."""
        raise NotImplementedError


class Writer:
    """Writes messages into the outbox's tables through a connection of the application."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._statements: dict[tuple[Dialect, Style], Statements] = {}

    def write(self, messages: Messages, connection: Any) -> None:
        target = driver(connection)
        if target.is_async:
            raise RemudaError(
                f"{type_name(connection)} is asynchronous; write `await bus.publish_async(...)`. Nothing was stored"
            )
        target.check()
        with explain_errors(self._names, target.dialect):
            statement, values, many = self._plan(messages, target)
            (target.execute_many if many else target.execute)(statement.sql, values)

    async def write_async(self, messages: Messages, connection: Any) -> None:
        target = driver(connection)
        if not target.is_async:
            self.write(messages, connection)
            return
        target.check()
        with explain_errors(self._names, target.dialect):
            statement, values, many = self._plan(messages, target)
            await (target.execute_many if many else target.execute)(statement.sql, values)

    def _plan(self, messages: Messages, target: Driver) -> tuple[Statement, Any, bool]:
        chosen = (target.dialect, target.style)
        if chosen not in self._statements:
            self._statements[chosen] = Statements(target.dialect, self._names, target.style)
        statements = self._statements[chosen]
        if target.dialect == "sqlite":
            statement = statements("publish")
            return statement, [statement.values(one) for one in rows.singles(messages)], True
        if len(messages) == 1:
            statement = statements("publish_one")
            return statement, statement.values(rows.one(messages)), False
        given = rows.shared(messages)
        if given is not None:
            statement = statements("publish_shared")
            return statement, statement.values(given), False
        statement = statements("publish_rows")
        return statement, statement.values(rows.columns(messages)), False


class Sqlite(Driver):
    def check(self) -> None:
        connection = self.connection
        autocommit = getattr(connection, "autocommit", -1) is True or (
            connection.isolation_level is None and getattr(connection, "autocommit", -1) is not False
        )
        if autocommit and not connection.in_transaction:
            raise _no_transaction("BEGIN")

    def execute(self, sql: str, values: Any) -> Any:
        return self.connection.execute(sql, values)

    def execute_many(self, sql: str, values: list[Any]) -> Any:
        return self.connection.executemany(sql, values)

    def insert(self, sql: str, values: Any) -> Any:
        return self.connection.execute(sql, values).fetchone() is not None


class AioSqlite(Sqlite):
    is_async = True

    async def execute(self, sql: str, values: Any) -> Any:
        await self.connection.execute(sql, values)

    async def execute_many(self, sql: str, values: list[Any]) -> Any:
        await self.connection.executemany(sql, values)

    async def insert(self, sql: str, values: Any) -> Any:
        async with self.connection.execute(sql, values) as cursor:
            return await cursor.fetchone() is not None


class Psycopg(Driver):
    def check(self) -> None:
        if self.connection.autocommit and self.connection.info.transaction_status.name == "IDLE":
            raise _no_transaction("with conn.transaction()")

    def execute(self, sql: str, values: Any) -> Any:
        from psycopg import Cursor

        with Cursor(self.connection) as cursor:
            cursor.execute(sql, values)
            return cursor.rowcount > 0

    insert = execute


class AsyncPsycopg(Psycopg):
    is_async = True

    async def execute(self, sql: str, values: Any) -> Any:
        from psycopg import AsyncCursor

        async with AsyncCursor(self.connection) as cursor:
            await cursor.execute(sql, values)
            return cursor.rowcount > 0

    insert = execute


class Asyncpg(Driver):
    is_async = True

    def check(self) -> None:
        if not self.connection.is_in_transaction():
            raise _no_transaction("async with conn.transaction()")

    async def execute(self, sql: str, values: Any) -> Any:
        await self.connection.execute(sql, *values)

    async def insert(self, sql: str, values: Any) -> Any:
        return await self.connection.fetchrow(sql, *values) is not None


class Alchemy(Driver):
    def check(self) -> None:
        _check_alchemy(self.connection)

    def execute(self, sql: str, values: Any) -> Any:
        self.connection.exec_driver_sql(sql, values)

    execute_many = execute

    def insert(self, sql: str, values: Any) -> Any:
        return self.connection.exec_driver_sql(sql, values).first() is not None


class AsyncAlchemySession(Driver):
    is_async = True

    async def execute(self, sql: str, values: Any) -> Any:
        connection = await self.connection.connection() if is_a(self.connection, "AsyncSession") else self.connection
        await connection.run_sync(_check_alchemy)
        return await connection.exec_driver_sql(sql, values)

    execute_many = execute

    async def insert(self, sql: str, values: Any) -> Any:
        return (await self.execute(sql, values)).first() is not None


class Django(Driver):
    def check(self) -> None:
        if self.connection.get_autocommit() and not self.connection.in_atomic_block:
            raise _no_transaction("with transaction.atomic()")

    def execute(self, sql: str, values: Any) -> Any:
        driver(self._raw()).execute(sql, values)

    def execute_many(self, sql: str, values: list[Any]) -> Any:
        driver(self._raw()).execute_many(sql, values)

    def insert(self, sql: str, values: Any) -> Any:
        return driver(self._raw()).insert(sql, values)

    def _raw(self) -> Any:
        self.connection.ensure_connection()
        self.connection.validate_no_broken_transaction()
        return self.connection.connection


def driver(connection: Any) -> Driver:
    """The adapter for this connection."""
    if isinstance(connection, str):
        connection = django_connection(connection)
    connection = unwrapped(connection)
    for kind in type(connection).__mro__:
        root, name = kind.__module__.partition(".")[0], kind.__name__
        match root, name:
            case "sqlite3", "Connection":
                return Sqlite(connection, "sqlite", "qmark")
            case "aiosqlite", "Connection":
                return AioSqlite(connection, "sqlite", "qmark")
            case "psycopg", "Connection":
                return Psycopg(connection, "postgres", "format")
            case "psycopg", "AsyncConnection":
                return AsyncPsycopg(connection, "postgres", "format")
            case "asyncpg", "Connection" | "PoolConnectionProxy":
                return Asyncpg(connection, "postgres", "numeric")
            case "sqlalchemy", "Session" | "scoped_session":
                made = connection.connection()
                return Alchemy(made, *_alchemy(made.dialect))
            case "sqlalchemy", "Connection":
                return Alchemy(connection, *_alchemy(connection.dialect))
            case "sqlalchemy", "AsyncSession":
                return AsyncAlchemySession(connection, *_alchemy(connection.get_bind().dialect))
            case "sqlalchemy", "AsyncConnection":
                return AsyncAlchemySession(connection, *_alchemy(connection.dialect))
            case "django", "BaseDatabaseWrapper":
                return Django(connection, *_vendor(connection))
    raise InvalidOption(f"transaction must be {_KNOWN}, not {type_name(connection)}; nothing was stored")


def unwrapped(connection: Any) -> Any:
    """The real object behind Django's `connection` proxy or SQLAlchemy's scoped session, for this thread or task."""
    if type(connection).__name__ == "ConnectionProxy" and type(connection).__module__.startswith("django."):
        return connection._connections[connection._alias]
    if type(connection).__name__ in ("scoped_session", "async_scoped_session"):
        return connection.registry()
    return connection


def django_connection(alias: str) -> Any:
    try:
        from django.db import connections
    except ImportError:
        raise MissingExtra("Django connections", "django") from None
    try:
        return connections[alias]
    except Exception as error:
        raise InvalidOption(f"transaction={alias!r} names no Django connection: {error}; nothing was stored") from error


def _alchemy(dialect: Any) -> tuple[Dialect, Style]:
    name, style = (
        dialect.name,
        {"pysqlite": "qmark", "aiosqlite": "qmark", "asyncpg": "numeric"}.get(dialect.driver, "format"),
    )
    if name not in ("postgresql", "sqlite"):
        raise OutboxError(f"the outbox supports PostgreSQL and SQLite, not {name}; nothing was stored")
    return ("postgres" if name == "postgresql" else "sqlite"), style  # type: ignore[return-value]


def _check_alchemy(connection: Any) -> None:
    """Raise if the driver commits each statement (AUTOCOMMIT): then SQLAlchemy's transaction is not a real one."""
    if not _commits_by_itself(connection):
        return
    began = None if connection.in_transaction() else connection.begin()  # an event may send the BEGIN
    if _commits_by_itself(connection):
        if began is not None:
            began.rollback()
        raise _no_transaction("use an engine or connection whose isolation_level is not AUTOCOMMIT")


def _commits_by_itself(connection: Any) -> bool:
    pooled = connection.connection
    autocommit = getattr(pooled.dbapi_connection, "autocommit", None)
    if not isinstance(autocommit, bool):  # in sqlite3, the isolation level shows it
        autocommit = getattr(pooled.dbapi_connection, "isolation_level", "") is None
    return autocommit and not getattr(pooled.driver_connection, "in_transaction", False)


def _vendor(connection: Any) -> tuple[Dialect, Style]:
    if connection.vendor not in ("postgresql", "sqlite"):
        raise OutboxError(f"the outbox supports PostgreSQL and SQLite, not {connection.vendor}; nothing was stored")
    return ("postgres", "format") if connection.vendor == "postgresql" else ("sqlite", "qmark")


def is_a(value: object, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(value).__mro__)


def type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _no_transaction(hint: str) -> RemudaError:
    return RemudaError(
        "the connection commits each statement by itself, and no transaction is open for the message to be part of; "
        f"begin one first: {hint}. Nothing was stored"
    )


@contextmanager
def explain_errors(names: Names, dialect: str) -> Iterator[None]:
    """Turn errors about missing or outdated tables into errors that say how to create or upgrade them."""
    try:
        yield
    except RemudaError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if "UndefinedTable" in text or "no such table" in text or "InvalidSchemaName" in text:
            where = f"{names.schema}.{names.prefix}" if dialect == "postgres" else names.prefix
            raise SchemaMissing(
                f"the outbox's tables {where}* are not in this database; create them with `remuda db init URL` or "
                f"Outbox.create_tables(). Nothing was stored ({text})"
            ) from error
        if "UndefinedColumn" in text or "has no column named" in text or "no such column" in text:
            raise OutboxError(
                "the outbox's tables are older than this Remuda; run `remuda db upgrade URL`. Nothing was stored "
                f"({text})"
            ) from error
        raise
