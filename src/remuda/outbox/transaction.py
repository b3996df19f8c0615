"""`with bus.transaction(connection):` a transaction that ends with the block and includes what is published in it."""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from remuda.model.errors import RemudaError
from remuda.outbox.database import drivers

current: contextvars.ContextVar[Any] = contextvars.ContextVar("remuda_transaction", default=None)
"""The connection whose transaction block this code runs in."""


class Transaction:
    """For `with` and `async with`. If a transaction is already open, this is a savepoint in it, and the code that began
    the transaction has to commit it."""

    def __init__(self, connection: Any, committed: Callable[[], None]) -> None:
        if not is_session(connection):
            drivers.driver(connection)  # raises for a connection of an unknown kind
        self._connection = (
            drivers.unwrapped(connection) if not isinstance(connection, str) else drivers.django_connection(connection)
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
            raise RemudaError(
                f"{drivers.type_name(connection)} is asynchronous; write `async with bus.transaction(...)`"
            )


def _begin_async(connection: Any) -> Any:
    match _kind(connection):
        case "aiosqlite":
            return _aiosqlite(connection)
        case "psycopg async" | "asyncpg":
            return connection.transaction()
        case "sqlalchemy async":
            return connection.begin_nested() if connection.in_transaction() else connection.begin()
        case _:
            raise RemudaError(f"{drivers.type_name(connection)} is synchronous; write `with bus.transaction(...)`")


def _kind(connection: Any) -> str:
    if is_session(connection):
        return (
            "sqlalchemy async"
            if "Async" in type(connection).__name__ or drivers.is_a(connection, "AsyncSession")
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


def is_session(connection: Any) -> bool:
    """Whether this is an SQLAlchemy session. Asking it for its connection would begin a transaction."""
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
