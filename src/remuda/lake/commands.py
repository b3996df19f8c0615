"""`remuda lake`: the log's lakehouse tables."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from remuda.lake import publish as publish_tables
from remuda.model.errors import RemudaError
from remuda.model.values.durations import micros
from remuda.spark.commands import in_one_line
from remuda.spark.session.missing_pyspark import need_pyspark

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


Lake = Annotated[str, typer.Argument(help="The lake: a folder, or a place in an object store (s3://bucket/lake).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Master = Annotated[str | None, typer.Option(help="A Spark master; local[*] by default.")]


@app.command()
def optimize(lake: Lake, master: Master = None, as_json: AsJson = False) -> None:
    """Put small files together, in all tables of a pipeline's lake. The rows stay the same."""
    with in_one_line():
        need_pyspark()
        from remuda.spark import session
        from remuda.spark.pipelines.jobs import lake_tables
        from remuda.spark.source.spark_log import is_small

        tables = lake_tables(lake)
        spark = session("remuda lake optimize", master=master, quick=master is None and is_small(lake))
        for table in tables:
            gone, made = table.optimize(spark)
            text = f"{table.name}: {gone:,} files put together into {made:,}"
            _tell(text, as_json, table=table.name, removed=gone, made=made)


@app.command()
def convert(lake: Lake, as_json: AsJson = False) -> None:
    """Make a lake of Remuda's own older format one of Delta. No row is copied."""
    with in_one_line():
        need_pyspark()
        from remuda.spark.lake.table import convert as convert_lake

        done = convert_lake(lake)
        for name, files in done.items():
            _tell(f"{name}: {files:,} files are in Delta's log", as_json, table=name, files=files)
        if not done and not as_json:
            typer.echo("the lake is Delta's already")


@app.command()
def vacuum(
    lake: Lake,
    older_than: Annotated[str, typer.Option(help="Only what versions dropped so long ago.")] = "1d",
    as_json: AsJson = False,
) -> None:
    """Remove files that the tables of a pipeline's lake have dropped, and what failed jobs left a day ago."""
    with in_one_line():
        need_pyspark()
        from remuda.spark.pipelines.jobs import lake_tables

        for table in lake_tables(lake):
            removed = table.vacuum(micros(older_than) / 1e6, full=True)
            _tell(f"{table.name}: {removed:,} files removed", as_json, table=table.name, removed=removed)


def _tell(text: str, as_json: bool, **values: object) -> None:
    typer.echo(json.dumps(values) if as_json else text)


def _line(one: Published) -> str:
    if not one.version:
        return f"{one.table} ({one.format}): no table yet, since there is no sealed file to list"
    return f"{one.table} ({one.format}): {one.added} files added, {one.dropped} dropped, up to {one.end:,}"
