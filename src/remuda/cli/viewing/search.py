"""`remuda search`: messages by queue, topic, state, time, key and the words of their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli.commands.index import Directory, Place

if TYPE_CHECKING:
    from remuda.model.message_row import MessageRow


def search(
    directory: Directory,
    query: Annotated[
        list[str] | None,
        typer.Argument(
            help="Words of the body, and queue:NAME topic:fruit.* state:dead since:2h until:TIME object:NAME key:VALUE."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="Most messages to list.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Continue after the page that returned this cursor.")] = None,
    place: Place = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Search the index as it is, without catching up first.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find messages, newest first. The index first catches up with the log, and is built if missing."""
    from remuda.cli import output
    from remuda.cli.commands.index import opened
    from remuda.cli.progress import reading
    from remuda.cli.times import point
    from remuda.index import parse_query

    asked = parse_query(query or [], point, limit=limit, cursor=cursor)
    with opened(directory, place) as (index, log, follower):
        if not stale:
            with reading(log.end()[0], quiet=as_json) as progress:
                follower.catch_up(progress)
            index.refresh()
        page = index.search(asked)
        bodies = log.bodies(row.offset for row in page.messages)
        if not stale and any(row.offset not in bodies for row in page.messages):
            # Some messages were collected since the index was last brought up to date.
            follower.forget_collected()
            index.refresh()
            page = index.search(asked)
            bodies = log.bodies(row.offset for row in page.messages)
        behind = follower.lag()
    if as_json:
        rows = [_plain(row, bodies.get(row.offset)) for row in page.messages]
        output.json({"messages": rows, "next": page.next, "behind": behind})
        return
    if not page.messages:
        typer.echo("nothing found")
    for row in page.messages:
        for line in _lines(row, bodies.get(row.offset)):
            typer.echo(line)
    if page.next is not None:
        typer.echo(f"more: --cursor {_quoted(page.next)}")
    if behind.messages or behind.events:
        typer.echo(f"the index is {behind.messages:,} messages and {behind.events:,} events behind the log")


def _lines(row: MessageRow, body: bytes | None) -> Iterator[str]:
    """One hit, cut to the terminal's width: where it is, why it ended there, and the beginning of its body."""
    from remuda.cli import output
    from remuda.model.life import why
    from remuda.model.state import WORDS

    width = get_terminal_size((80, 24)).columns
    about = f" {row.object or ''}:{row.key or ''}" if row.object or row.key else ""
    state = WORDS[row.state] if row.moved_to is None else "moved"
    topics = ", ".join(row.topics)
    lines = [f"#{row.offset}  {output.clock(row.created)}  {state}  {row.queue or '(no queue)'}  {topics}{about}"]
    if text := why(row.reason, row.moved_to):
        lines.append(f"    {text}")
    lines.append(f"    {'(no longer in the log)' if body is None else output.excerpt(body, width)}")
    for line in lines:
        yield output.clipped(output.safe(line), width)


def _plain(row: MessageRow, body: bytes | None) -> dict[str, Any]:
    from msgspec import to_builtins

    from remuda.cli import output

    plain: dict[str, Any] = output.with_times(to_builtins(row))
    del plain["excerpt"]
    plain["body"] = None if body is None else output.content(body)
    return plain


def _quoted(text: str) -> str:
    from shlex import quote

    from remuda.cli.output import safe

    return quote(safe(text))
