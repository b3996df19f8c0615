"""`remuda pipeline`: list, run and watch the pipelines."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from remuda.model.errors import RemudaError
from remuda.spark.extra import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

app = typer.Typer(name="pipeline", help="Spark pipelines over the log.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="The directory of the log.")]
Lake = Annotated[str, typer.Option(help="The folder of the lake's tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command("list")
def list_pipelines(as_json: AsJson = False) -> None:
    """What can be run."""
    need_pyspark()
    from remuda.spark.pipelines.jobs import JOBS

    told = {name: " ".join((job.__doc__ or "").split()) for name, job in JOBS.items()}
    if as_json:
        typer.echo(json.dumps(told))
        return
    table = Table("pipeline", "what it does")
    for name, text in told.items():
        table.add_row(name, text)
    Console().print(table)


@app.command()
def run(
    name: str,
    url: Url,
    lake: Lake = "lake",
    master: Annotated[str | None, typer.Option(help="A Spark master; local[*] unless told.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, sc://host:port.")] = None,
    continuous: Annotated[bool, typer.Option("--continuous/--once", help="Go on until stopped.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline, with progress."""
    try:
        need_pyspark()
        from remuda.spark import session
        from remuda.spark.pipelines.jobs import JOBS, Place

        if name not in JOBS:
            raise typer.BadParameter(f"there is no pipeline {name!r}; there are {', '.join(JOBS)}")
        options = dict(_setting(text) for text in settings or [])
        spark = session(f"remuda {name}", master=master, remote=remote)
        started = time.monotonic()
        queries = JOBS[name](spark, Place(url=url, lake=lake, continuous=continuous, options=options))
        try:
            while continuous and all(query.isActive for query in queries):
                time.sleep(1)
                _tell(queries, as_json)
        except KeyboardInterrupt:
            for query in queries:
                query.stop()
        _tell(queries, as_json)
        for query in queries:
            query.awaitTermination()
    except RemudaError as error:
        raise typer.Exit(_fail(error)) from error
    if as_json:
        typer.echo(json.dumps({"pipeline": name, "seconds": round(time.monotonic() - started, 3)}))
    else:
        typer.echo(f"{name} is done after {time.monotonic() - started:.1f} s")


@app.command()
def status(url: Url, lake: Lake = "lake", as_json: AsJson = False) -> None:
    """How far each pipeline that follows the log has come, and how far behind it is."""
    from remuda.spark.progress import progress

    try:
        rows = progress(url, lake)
    except RemudaError as error:
        raise typer.Exit(_fail(error)) from error
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("pipeline", "batches", "at", "log ends at", "behind")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("pipeline", "batches", "at", "end", "behind")))
    Console().print(table)


def summary(query: StreamingQuery) -> dict[str, Any] | None:
    """Rows, rate and lag of the last micro-batch of a query."""
    last = query.lastProgress
    if last is None:
        return None
    source = last["sources"][0]
    reached, end = (_numbers(source[name]) for name in ("endOffset", "latestOffset"))
    return {
        "query": last["name"],
        "batch": last["batchId"],
        "rows": last["numInputRows"],
        "rate": round(last["processedRowsPerSecond"] or 0.0, 1),
        "lag": sum(max(end.get(key, number) - number, 0) for key, number in reached.items()),
    }


def _tell(queries: list[StreamingQuery], as_json: bool) -> None:
    for query in queries:
        told = summary(query)
        if told is None:
            continue
        if as_json:
            typer.echo(json.dumps(told))
        else:
            typer.echo(
                f"{told['query']}: batch {told['batch']}, {told['rows']} rows at {told['rate']:,.0f}/s, "
                f"{told['lag']} behind"
            )


def _numbers(offset: str | None) -> dict[str, int]:
    numbers: dict[str, int] = json.loads(offset) if offset else {}
    return numbers


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"write --set {text}=VALUE")
    return name, value


def _fail(error: RemudaError) -> int:
    typer.echo(str(error), err=True)
    return 1
