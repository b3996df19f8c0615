"""`remuda db`: the outbox's tables and messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from remuda.outbox.admin import Administration
    from remuda.outbox.database.table_names import Names

app = typer.Typer(
    help="Create, upgrade and inspect an outbox's tables. URL is postgresql://… or sqlite:///path.",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Argument(metavar="URL|APP", help="The database, or the app whose bus has an outbox.")]
Schema = Annotated[str, typer.Option(help="The schema of the tables; PostgreSQL only.")]
Prefix = Annotated[str, typer.Option(help="Prefix of the table names.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("init")
def init(url: Url, schema: Schema = "public", prefix: Prefix = "remuda_", as_json: AsJson = False) -> None:
    """Create the tables. Does nothing if they exist."""
    _upgrade(url, schema, prefix, as_json)


@app.command("upgrade")
def upgrade(
    url: Url,
    schema: Schema = "public",
    prefix: Prefix = "remuda_",
    restored: Annotated[
        bool, typer.Option("--restored", help="After restoring a dump: keep unsent messages, reset the numbering.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade the tables to this version of Remuda."""
    _upgrade(url, schema, prefix, as_json)
    if restored:
        with _open(url, schema, prefix) as administration:
            administration.restored()
        if not as_json:
            typer.echo("the outbox continues from here; unsent messages will be sent")


@app.command("status")
def status(url: Url, schema: Schema = "public", prefix: Prefix = "remuda_", as_json: AsJson = False) -> None:
    """Show the tables' version, the messages by status, and the active relays."""
    from remuda.cli import output
    from remuda.outbox.admin import describe
    from remuda.outbox.database.connections import dialect_of
    from remuda.outbox.database.statements import LATEST

    where, names = _where(url, schema, prefix)
    if _exists(where):
        with _database_errors():
            state = describe(where, names)
    else:
        state = {"database": dialect_of(where), "version": 0, "latest": LATEST}
    if as_json:
        output.json(state)
        return
    if not state["version"]:
        typer.echo("there are no tables; remuda db init creates them")
        raise typer.Exit(1)
    typer.echo(f"{state['database']}, tables version {state['version']} (this Remuda has {state['latest']})")
    output.table(["status", "messages"], state.get("messages", {}).items(), right=["messages"])
    output.table(
        ["relay", "lanes"], ((name, ", ".join(map(str, lanes))) for name, lanes in state.get("relays", {}).items())
    )


@app.command("sql")
def sql(url: Url, schema: Schema = "public", prefix: Prefix = "remuda_") -> None:
    """Print the SQL that creates the tables."""
    from remuda.outbox.database.connections import dialect_of
    from remuda.outbox.database.statements import LATEST, migration

    where, names = _where(url, schema, prefix)
    for version in range(1, LATEST + 1):
        typer.echo(migration(dialect_of(where), names, version))


@app.command("messages")
def messages(
    url: Url,
    status: Annotated[str, typer.Option(help="scheduled, succeeded, delayed or failed.")] = "failed",
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most messages to list.")] = 20,
    schema: Schema = "public",
    prefix: Prefix = "remuda_",
    as_json: AsJson = False,
) -> None:
    """List messages of one status, the newest first."""
    import msgspec

    from remuda.cli import output
    from remuda.model.errors import InvalidOption
    from remuda.outbox.records import Status

    if status not in set(Status):
        raise InvalidOption(f"--status must be one of {', '.join(Status)}; not {status!r}")
    with _open(url, schema, prefix) as administration:
        found = administration.messages(Status(status), limit)
    if as_json:
        output.json([msgspec.structs.asdict(one) for one in found])
        return
    rows = (
        (one.id, one.topic, one.key, output.clock(int(one.created * 1e6)), one.attempts, one.reason) for one in found
    )
    output.table(["id", "topic", "key", "created", "attempts", "note"], rows, right=["attempts"])


@app.command("retry")
def retry(
    url: Url,
    ids: Annotated[list[str] | None, typer.Argument(help="The messages' ids; all failed messages by default.")] = None,
    schema: Schema = "public",
    prefix: Prefix = "remuda_",
    as_json: AsJson = False,
) -> None:
    """Send failed messages again, with a fresh count of attempts."""
    from remuda.cli import output
    from remuda.model.errors import NotFound

    with _open(url, schema, prefix) as administration:
        number = administration.retry(ids or None)
    if ids and not number:
        raise NotFound(
            f"none of {', '.join(ids)} is a failed message; nothing was changed. `remuda db messages` lists them"
        )
    output.done(f"{output.count(number, 'message')} will be sent again", as_json, retried=number)


def _upgrade(url: str, schema: str, prefix: str, as_json: bool) -> None:
    from remuda.cli import output

    with _open(url, schema, prefix, check=False) as administration:
        done = administration.upgrade()
    output.done(
        f"the tables have version {done[-1]} now" if done else "the tables are up to date", as_json, installed=done
    )


@contextmanager
def _open(url: str, schema: str, prefix: str, *, check: bool = True) -> Iterator[Administration]:
    from remuda.model.errors import NotFound
    from remuda.outbox.admin import Administration

    where, names = _where(url, schema, prefix)
    if check and not _exists(where):
        raise NotFound(f"there is no database {where!r}; nothing was created. remuda db init {url} creates it")
    with _database_errors(), Administration.open(where, names) as administration:
        if check:
            administration.check()
        yield administration


def _exists(url: str) -> bool:
    """Whether SQLite's file exists. A command that only reads must not create it, as connecting would."""
    from pathlib import Path

    from remuda.outbox.database.connections import dialect_of, sqlite_path

    return dialect_of(url) != "sqlite" or Path(sqlite_path(url)).exists()


@contextmanager
def _database_errors() -> Iterator[None]:
    """Turn errors of the database into one line."""
    from remuda.model.errors import StorageError

    try:
        yield
    except Exception as error:
        # The library that raised the error is loaded by now.
        libraries = (sys.modules.get(name) for name in ("sqlite3", "psycopg"))
        if not isinstance(error, tuple(library.Error for library in libraries if library is not None)):
            raise
        raise StorageError(f"the database cannot be used: {' '.join(str(error).split())}") from error


def _where(url: str, schema: str, prefix: str) -> tuple[str, Names]:
    from remuda.cli.target import is_app, load_bus
    from remuda.model.errors import InvalidOption
    from remuda.outbox import Outbox
    from remuda.outbox.database.table_names import Names

    if not is_app(url):
        return url, Names(prefix, schema)
    outbox = load_bus(url).outbox
    if not isinstance(outbox, Outbox):
        raise InvalidOption(f"{url} has no outbox; give the URL of its database")
    return outbox.url, outbox.names
