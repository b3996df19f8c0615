"""`remuda lake`: the log's lakehouse tables."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from remuda.lake import publish as publish_tables
from remuda.model.errors import RemudaError

if TYPE_CHECKING:
    from remuda.lake.publishing import Published

app = typer.Typer(name="lake", help="The log as Delta and Iceberg tables.", no_args_is_help=True)


@app.callback()
def lake() -> None:
    """The log as Delta and Iceberg tables, with no byte copied."""


@app.command()
def publish(
    url: Annotated[str, typer.Argument(help="The directory of the log.")],
    formats: Annotated[list[str] | None, typer.Option("--format", help="delta or iceberg; both by default.")] = None,
    every: Annotated[
        float | None, typer.Option(min=0.1, help="Keep running, and update every so many seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Update the tables under DIR/tables to the files sealed so far."""
    try:
        while True:
            told = publish_tables(url, formats=formats or ("delta", "iceberg"))
            for one in told:
                if as_json:
                    typer.echo(json.dumps(msgspec.to_builtins(one)))
                elif one.added or one.dropped or every is None:
                    typer.echo(_line(one))
            for name in sorted({name for one in told for name in one.damaged}):
                typer.echo(f"{name} is damaged or gone, and not in the table; restore it from a copy", err=True)
            if every is None:
                return
            time.sleep(every)
    except RemudaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        return


def _line(one: Published) -> str:
    if not one.version:
        return f"{one.table} ({one.format}): no table yet, since there is no sealed file to list"
    return f"{one.table} ({one.format}): {one.added} files added, {one.dropped} dropped, up to {one.end:,}"
