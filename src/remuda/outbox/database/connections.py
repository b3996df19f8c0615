"""The outbox's own connections: to PostgreSQL by psycopg, to SQLite by the standard library."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from remuda.model.errors import InvalidOption
from remuda.model.values.extras import MissingExtra
from remuda.outbox.database.drivers import explain_errors
from remuda.outbox.database.statements import Dialect, Statements
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import OutboxError

if TYPE_CHECKING:
    import psycopg

_SQLITE: Final = "sqlite:///"
_WAIT: Final = 10.0


class PostgresSession:
    """Runs statements by name on PostgreSQL. Each commits by itself unless it is inside `transaction`."""

    dialect: Dialect = "postgres"

    def __init__(self, url: str, names: Names) -> None:
        library = _psycopg()
        self.names = names
        self._statements = Statements("postgres", names, "format")
        try:
            # So the server notices within half a minute if the relay's machine vanishes.
            self.connection: psycopg.Connection[tuple[Any, ...]] = library.connect(
                url, autocommit=True, application_name="remuda outbox",
                options="-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3",
                **({} if "connect_timeout" in url else {"connect_timeout": 10}),
            )  # fmt: skip
        except library.ProgrammingError as error:
            raise InvalidOption(f"the outbox's URL is not valid: {error}") from error

    def run(self, name: str, slot: int | str = "", /, **given: Any) -> list[tuple[Any, ...]]:
        statement = self._statements(name, slot)
        with explain_errors(self.names, "postgres"), self.connection.cursor(binary=True) as cursor:
            cursor.execute(statement.sql, statement.values(given), prepare=True)
            return cursor.fetchall() if cursor.description is not None else []

    def change(self, name: str, /, **given: Any) -> int:
        """Run a statement, and return the number of rows that it changed."""
        statement = self._statements(name)
        with explain_errors(self.names, "postgres"), self.connection.cursor(binary=True) as cursor:
            cursor.execute(statement.sql, statement.values(given))
            return cursor.rowcount

    def script(self, sql: str) -> None:
        with self.connection.transaction():
            self.connection.execute(sql.encode())

    def transaction(self) -> AbstractContextManager[Any]:
        return self.connection.transaction()

    def close(self) -> None:
        self.connection.close()


class SqliteSession:
    """Runs statements by name on SQLite. Each commits by itself unless it is inside `transaction`."""

    dialect: Dialect = "sqlite"

    def __init__(self, url: str, names: Names) -> None:
        self.path = sqlite_path(url)
        self.names = names
        self._statements = Statements("sqlite", names, "qmark")
        try:
            self.connection = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise OutboxError(f"the outbox's database {self.path} cannot be opened: {error}") from error

    def run(self, name: str, slot: int | str = "", /, **given: Any) -> list[tuple[Any, ...]]:
        statement = self._statements(name, slot)
        values = [json.dumps(value) if isinstance(value, list) else value for value in statement.values(given)]
        with explain_errors(self.names, "sqlite"):
            return self.connection.execute(statement.sql, values).fetchall()

    def change(self, name: str, /, **given: Any) -> int:
        """Run a statement, and return the number of rows that it changed."""
        before = self.connection.total_changes
        self.run(name, **given)
        return self.connection.total_changes - before

    def script(self, sql: str) -> None:
        try:
            self.connection.executescript(f"BEGIN IMMEDIATE;\n{sql}\nCOMMIT;")
        except sqlite3.Error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self.connection.close()


def connect(url: str, names: Names) -> PostgresSession | SqliteSession:
    """A session with the database at this URL."""
    return PostgresSession(postgres_url(url), names) if dialect_of(url) == "postgres" else SqliteSession(url, names)


def dialect_of(url: str) -> Dialect:
    if not isinstance(url, str):
        raise InvalidOption(f"the outbox's URL must be a string, not {url!r}")
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        return "postgres"
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        if sqlite_path(url) == ":memory:":
            raise InvalidOption("a database in memory belongs to one connection; give the outbox a file")
        return "sqlite"
    shown = scheme if "@" in url else url
    raise InvalidOption(f"the outbox's URL must be postgresql://… or sqlite:///path, not {shown!r}")


def postgres_url(url: str) -> str:
    """The URL without the driver name that SQLAlchemy's URLs have."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{separator}{rest}"


def sqlite_path(url: str) -> str:
    return str(Path(unquote(url.removeprefix(_SQLITE)).partition("?")[0]))


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise MissingExtra("outboxes in PostgreSQL", "postgres") from None
    return psycopg
