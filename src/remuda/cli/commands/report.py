"""`remuda report`: what queues did over time, counted in this process."""

from __future__ import annotations

from typing import Annotated

import typer

_WIDE = 200


def report(
    place: Annotated[
        str | None,
        typer.Argument(metavar="[DIR|URL|APP]", help="The directory, its amqp:// URL, or the app that uses it."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write a page with charts to this file.")
    ] = None,
    lake: Annotated[str | None, typer.Option(help="Read the message lives in this lake instead of a log.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only messages published at or after this time; 10m means ten minutes ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only messages published before this time.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="Only this queue. May be repeated.")] = None,
    window: Annotated[str, typer.Option(help="How time is divided: '1 minute', 30s, or auto.")] = "auto",
    top: Annotated[int, typer.Option(min=0, max=100, help="How many queues to show in detail.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report on what queues did. Covers throughput, waiting and processing times, retries, dead letters."""
    from rich.console import Console

    from remuda.cli import output as printer
    from remuda.cli.progress import spinner
    from remuda.cli.target import log_of
    from remuda.cli.times import point
    from remuda.spark.session.missing_pyspark import need_numpy

    need_numpy()
    from remuda.report import ReportRequest, check_place, make_report, print_report, write_page

    if output is not None:
        check_place(output)
    request = ReportRequest(
        url=None if place is None else log_of(place),
        lake=lake,
        since=None if since is None else point(since, "--since"),
        until=None if until is None else point(until, "--until"),
        queues=tuple(queue or ()),
        window=window,
        detailed=top,
    )
    with spinner("reading the log") as tell:
        made = make_report(request, tell=tell)
    if output is not None:
        write_page(output, made)
    if as_json:
        printer.json(made)
        return
    console = Console(highlight=False)
    print_report(made, console if console.is_terminal else Console(width=_WIDE, highlight=False))
    if output is not None:
        typer.echo(f"the page is {output}")
