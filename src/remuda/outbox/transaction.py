"""`with bus.transaction(connection):` what is published inside is part of a transaction that ends with the block."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from remuda.model.errors import RemudaError
from remuda.outbox import drivers

current: contextvars.ContextVar[Any] = contextvars.ContextVar("remuda_transaction", default=None)
"""The connection whose transaction is open here."""


class Transaction:
    """For `with` and `async with`. If a transaction is open already, this is a savepoint in it, and whoever began the
    transaction commits it."""

    def __init__(self, connection: Any, committed: Callable[[], None]) -> None:
        self._driver = drivers.driver(connection) if not _is_session(connection) else None
        self._connection = (
            drivers._unwrapped(connection) if not isinstance(connection, str) else drivers._django(connection)
        )
        self._committed = committed
        self._block: Any = None

    def __enter__(self) -> Any:
        self._block = self._sync()
        return self._block.__enter__()

    def __exit__(self, *exc: Any) -> bool | None:
        return self._block.__exit__(*exc)  # type: ignore[no-any-return]

    async def __aenter__(self) -> Any:
        self._block = self._async()
        return await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, trace)  # type: ignore[no-any-return]

    @contextmanager
    def _sync(self) -> Iterator[Any]:
        connection = self._connection
        with _begin(connection):
            token = current.set(connection)
            try:
                yield connection
            finally:
                current.reset(token)
        self._committed()

    @asynccontextmanager
    async def _async(self) -> AsyncIterator[Any]:
        connection = self._connection
        async with _begin_async(connection):
            token = current.set(connection)
            try:
                yield connection
            finally:
                current.reset(token)
        self._committed()


def _begin(connection: Any) -> Any:
    match _kind(connection):
        case "sqlite3":
            return _sqlite(connection)
        case "psycopg":
            return connection.transaction()
        case "sqlalchemy":
            return connection.begin_nested() if connection.in_transaction() else connection.begin()
        case "django":
            from django.db.transaction import atomic

            return atomic(using=connection.alias)
        case _:
            raise RemudaError(f"{drivers._named(connection)} is awaited; write `async with bus.transaction(...)`")


def _begin_async(connection: Any) -> Any:
    match _kind(connection):
        case "aiosqlite":
            return _aiosqlite(connection)
        case "psycopg async" | "asyncpg":
            return connection.transaction()
        case "sqlalchemy async":
            return connection.begin_nested() if connection.in_transaction() else connection.begin()
        case _:
            raise RemudaError(f"{drivers._named(connection)} is not awaited; write `with bus.transaction(...)`")


def _kind(connection: Any) -> str:
    if _is_session(connection):
        return (
            "sqlalchemy async"
            if "Async" in type(connection).__name__ or drivers._is_a(connection, "AsyncSession")
            else "sqlalchemy"
        )
    target = drivers.driver(connection)
    match type(target).__name__:
        case "Sqlite":
            return "sqlite3"
        case "AioSqlite":
            return "aiosqlite"
        case "Psycopg":
            return "psycopg"
        case "AsyncPsycopg":
            return "psycopg async"
        case "Asyncpg":
            return "asyncpg"
        case "Django":
            return "django"
        case "Alchemy":
            return "sqlalchemy"
        case _:
            return "sqlalchemy async"


def _is_session(connection: Any) -> bool:
    """Sessions are not asked for their connection before they are used: that would begin a transaction."""
    return any(
        kind.__module__.startswith("sqlalchemy.") and kind.__name__ in ("Session", "scoped_session", "AsyncSession")
        for kind in type(connection).__mro__
    )


@contextmanager
def _sqlite(connection: Any) -> Iterator[None]:
    nested = connection.in_transaction
    connection.execute("SAVEPOINT remuda_transaction" if nested else "BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("RELEASE remuda_transaction" if nested else "COMMIT")
    except BaseException:
        if connection.in_transaction:
            if nested:
                connection.execute("ROLLBACK TO remuda_transaction")
                connection.execute("RELEASE remuda_transaction")
            else:
                connection.execute("ROLLBACK")
        raise


@asynccontextmanager
async def _aiosqlite(connection: Any) -> AsyncIterator[None]:
    nested = connection.in_transaction
    await connection.execute("SAVEPOINT remuda_transaction" if nested else "BEGIN IMMEDIATE")
    try:
        yield
        await connection.execute("RELEASE remuda_transaction" if nested else "COMMIT")
    except BaseException:
        if connection.in_transaction:
            if nested:
                await connection.execute("ROLLBACK TO remuda_transaction")
                await connection.execute("RELEASE remuda_transaction")
            else:
                await connection.execute("ROLLBACK")
        raise
