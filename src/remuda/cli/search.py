"""`remuda search`: messages by queue, topic, state, time, key and the words of their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli.index import Directory, Place

if TYPE_CHECKING:
    from remuda.index import Hit


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
    from remuda.cli.index import opened
    from remuda.cli.times import point
    from remuda.index import parse_query

    asked = parse_query(query or [], point, limit=limit, cursor=cursor)
    with opened(directory, place) as (index, log, follower):
        if not stale:
            follower.catch_up()
            index.refresh()
        page = index.search(asked)
        bodies = log.bodies(hit.offset for hit in page.hits)
        if not stale and any(hit.offset not in bodies for hit in page.hits):
            # Some messages were collected since the index was last brought up to date.
            follower.forget_collected()
            index.refresh()
            page = index.search(asked)
            bodies = log.bodies(hit.offset for hit in page.hits)
        behind = follower.lag()
    if as_json:
        hits = [_plain(hit, bodies.get(hit.offset)) for hit in page.hits]
        output.json({"hits": hits, "cursor": page.cursor, "behind": behind})
        return
    if not page.hits:
        typer.echo("nothing found")
    for hit in page.hits:
        for line in _lines(hit, bodies.get(hit.offset)):
            typer.echo(line)
    if page.cursor is not None:
        typer.echo(f"more: --cursor {_quoted(page.cursor)}")
    if behind.messages or behind.events:
        typer.echo(f"the index is {behind.messages:,} messages and {behind.events:,} events behind the log")


def _lines(hit: Hit, body: bytes | None) -> Iterator[str]:
    """One hit, cut to the terminal's width: where it is, why it ended there, and the beginning of its body."""
    from remuda.cli import output
    from remuda.model.records import is_moved

    width = get_terminal_size((80, 24)).columns
    about = f" {hit.object or ''}:{hit.key or ''}" if hit.object or hit.key else ""
    state = "moved" if is_moved(hit.state, hit.reason) else output.STATES[hit.state]
    what = f"{output.clock(hit.created)}  {state}  {hit.queue or '(no queue)'}  {hit.name}{about}"
    lines = [f"#{hit.offset}  {what}"]
    if hit.reason:
        lines.append(f"    {hit.reason}")
    lines.append(f"    {'(no longer in the log)' if body is None else output.excerpt(body, width)}")
    for line in lines:
        yield output.clipped(output.safe(line), width)


def _plain(hit: Hit, body: bytes | None) -> dict[str, Any]:
    from remuda.cli import output

    return {
        "offset": hit.offset,
        "queue": hit.queue or None,
        "id": hit.id,
        "topic": hit.name,
        "topics": hit.topics,
        "state": hit.state.value,
        "created": output.iso(hit.created),
        "modified": output.iso(hit.modified),
        "object": hit.object,
        "key": hit.key,
        "mimeType": hit.mime_type,
        "size": hit.size,
        "attempts": hit.attempts,
        "reason": hit.reason,
        "body": None if body is None else output.content(body),
    }


def _quoted(text: str) -> str:
    from shlex import quote

    from remuda.cli.output import safe

    return quote(safe(text))
