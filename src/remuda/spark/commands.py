"""`remuda pipeline`: list, run and watch the pipelines."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from remuda.model.errors import RemudaError
from remuda.spark.session.missing_pyspark import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from remuda.spark.query_progress import QueryProgress

T = TypeVar("T")

app = typer.Typer(name="pipeline", help="Spark pipelines over the log.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(help="The directory of the log, or its amqp:// URL.")]
Lake = Annotated[str, typer.Option(help="The lake: a folder, or a place in an object store (s3://bucket/lake).")]
Name = Annotated[str | None, typer.Option("--log", help="The name of this log, in a lake of several.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_NOT_THERE: Final = re.compile(r"No module named '(?:pyspark_)?remuda|DATA_SOURCE_NOT_FOUND\S* .*\bremuda\b")
_OURS: Final = re.compile(r"^remuda\.[\w.]+: (.+)$", re.MULTILINE)

_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""A Python traceback; its last line is the error itself."""
_PREAMBLE: Final = re.compile(r"An error occurred while calling \S+$")
"""The first line of PySpark's text for a Java error that it does not know."""
_JAVA: Final = re.compile(r"^(?:: )?(?:[a-z]\w*\.)+[A-Z]\w*: ")


@app.command("list")
def list_pipelines(as_json: AsJson = False) -> None:
    """List the pipelines."""
    need_pyspark()
    from remuda.spark.pipelines.jobs import JOBS

    described = {name: " ".join((job.__doc__ or "").split()) for name, job in JOBS.items()}
    if as_json:
        typer.echo(json.dumps(described))
        return
    table = Table("pipeline", "what it does")
    for name, text in described.items():
        table.add_row(name, text)
    Console().print(table)


@app.command()
def run(
    name: str,
    url: Url,
    lake: Lake = "lake",
    master: Annotated[str | None, typer.Option(help="A Spark master; local[*] by default.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, sc://host:port.")] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Run until stopped, or process what is new and exit.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An option of the pipeline. May be repeated."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A Spark setting. May be repeated.")
    ] = None,
    log: Name = None,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline and show its progress."""
    started = time.monotonic()
    with in_one_line():
        need_pyspark()
        from pyspark.sql.utils import is_remote

        from remuda.spark import session
        from remuda.spark.pipelines.jobs import JOBS
        from remuda.spark.pipelines.streaming_queries import Place
        from remuda.spark.progress import note_of
        from remuda.spark.query_progress import Watch
        from remuda.spark.restarting import keep_running
        from remuda.spark.session.starting import NO_CALL_SITES
        from remuda.spark.source.spark_log import anchored, is_small, place_text

        if name not in JOBS:
            raise typer.BadParameter(f"there is no pipeline {name!r}; there are {', '.join(JOBS)}")
        options = dict(_setting("--set", text) for text in settings or [])
        config = dict(_setting("--conf", text) for text in conf or [])
        place = Place(
            url=anchored(place_text(url)),
            lake=anchored(place_text(lake)),
            continuous=continuous,
            options=options,
            log=log,
            tell=lambda deed, counts: _tell_deed(name, deed, counts, as_json),
        )
        # A cluster is for large work, and what is followed may become large.
        sources = (place.url, place.lake, *options.get("source", "").split(","))
        quick = master is None and not continuous and is_small(*sources)
        watch = Watch(lambda progress: _show(progress, as_json))
        with _interrupts() as interrupted:
            config = {**NO_CALL_SITES, **config}
            spark = _beside(
                lambda: session(f"remuda {name}", master=master, remote=remote, quick=quick, config=config)
            ).result()
            queries: list[StreamingQuery] = []

            def begin() -> concurrent.futures.Future[list[StreamingQuery]]:
                return _beside(lambda: _run_in(spark, lambda: JOBS[name](spark, place)))

            with watch.over(spark):
                if not interrupted.is_set():
                    job = begin()
                    while not (job.done() or interrupted.is_set()):
                        concurrent.futures.wait([job], timeout=0.2)
                    queries = job.result() if job.done() else spark.streams.active
                if continuous and not interrupted.is_set():
                    note = note_of(place.lake, name, log)
                    queries = keep_running(queries, lambda: begin().result(), interrupted, note, _reason)
                if interrupted.is_set() and not is_remote():
                    spark.sparkContext.setLogLevel("OFF")  # or Spark logs at length the jobs that this ends
                for query in queries:
                    query.stop()
        watch.look(queries)
        for query in queries:
            query.awaitTermination()
        if interrupted.is_set() and not continuous:
            typer.echo(f"{name} was interrupted; what was done is kept, run it again for the rest", err=True)
            raise typer.Exit(128 + signal.SIGINT)
    if as_json:
        typer.echo(json.dumps({"pipeline": name, "seconds": round(time.monotonic() - started, 3)}))
    else:
        typer.echo(f"{name} is done after {time.monotonic() - started:.1f} s")


@app.command()
def status(url: Url, lake: Lake = "lake", log: Name = None, as_json: AsJson = False) -> None:
    """Show how far each pipeline has come, and how far behind the log it is."""
    from remuda.spark.progress import log_names, progress
    from remuda.spark.source.spark_log import place_text

    with in_one_line():
        rows = progress(place_text(url), place_text(lake), log)
        if not rows and (names := log_names(lake)):
            typer.echo(f"the lake has logs of other names: --log {' or '.join(names)}", err=True)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("pipeline", "batches", "at", "log ends at", "behind", "missing")
    for row in rows:
        numbers = (_numbers(row[name]) for name in ("at", "end"))
        table.add_row(row["pipeline"], str(row["batches"]), *numbers, f"{row['behind']:,}", f"{row['missing']:,}")
    Console().print(table)
    for row in rows:
        if row["trouble"]:
            typer.echo(f"{row['pipeline']} {row['trouble']}")
        for first, last, cause in row["gaps"]:
            typer.echo(f"{row['pipeline']} went on without {first:,} to {last:,}: {cause}")


def _show(one: QueryProgress, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(one))
    else:
        typer.echo(f"{one.query}: batch {one.batch}, {one.rows:,} rows at {one.rate:,.0f}/s, {one.lag:,} behind")


def _tell_deed(name: str, deed: str, counts: Mapping[str, int], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"pipeline": name, "deed": deed, **counts}))
    else:
        listed = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        typer.echo(f"{name}: {listed} {deed}")


def _numbers(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in found.items())


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Say what went wrong without a stack, and exit."""
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # or PySpark logs it first
    try:
        yield
    except RemudaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        typer.echo(f"error: {_reason(str(error))}", err=True)
        raise typer.Exit(1) from error


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set when Ctrl-C is pressed; pressed again, it forces an end. An exception in the middle of a call to Spark would
    leave its answer to be read as that of the next call, and PySpark's own handler cancels jobs just there."""
    noted = threading.Event()

    def note(number: int, frame: object) -> None:
        if noted.is_set():
            raise KeyboardInterrupt
        noted.set()

    theirs = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, theirs)


def _beside(work: Callable[[], T]) -> concurrent.futures.Future[T]:
    """Work in a thread of its own: the main thread stays free for Ctrl-C, and there PySpark would install its own
    handler."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="remuda-pipeline", daemon=True).start()
    return outcome


def _run_in(spark: SparkSession, job: Callable[[], T]) -> T:
    from remuda.spark.session.starting import make_active

    make_active(spark)
    return job()


def _reason(text: str) -> str:
    """The cause of an error that came through many processes."""
    if _NOT_THERE.search(text):
        return (
            "the Python that Spark runs has no Remuda: install it there (pip install 'remuda[spark]'), and let "
            "PYSPARK_PYTHON name that Python"
        )
    if "Python worker failed to connect back" in text:
        return "Spark's Python did not start in time, as on a busy machine; what was done is kept, run it again"
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    if tracebacks := _TRACEBACK.findall(text):
        return str(tracebacks[-1])
    lines = [line for line in text.splitlines() if line.strip() and not _PREAMBLE.match(line)]
    return _JAVA.sub("", lines[0]) if lines else text


def _setting(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"write {flag} {text}=VALUE")
    return name, value
