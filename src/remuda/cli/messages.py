"""`remuda messages` and `remuda message`: what a queue holds, and one message's whole life."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from remuda.cli.look import Row, Tale

Directory = Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


def messages(
    directory: Directory,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    state: Annotated[
        str | None, typer.Option(help="waiting, delayed, in-flight, dead, invalid or not-interested; all without it.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """List what a queue holds: all that waits, is being handled, or ended without success. Changes nothing."""
    from remuda.cli import say
    from remuda.cli.look import Look, check_kind
    from remuda.cli.target import directory_of

    kinds = check_kind(state)
    rows = Look(directory_of(directory)).rows(queue, kinds, limit)
    if as_json:
        say.json([_plain(row) for row in rows])
        return
    columns = ["id", "topic", "state", "tries", "created", "note", "body"]
    say.table(columns, map(_cells, rows), right=["tries"])


def message(
    directory: Directory,
    id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    offset: Annotated[bool, typer.Option("--offset", help="ID is an offset in the log.")] = False,
    as_json: Json = False,
) -> None:
    """Tell one message's whole life, from publish to its end in every queue. Changes nothing."""
    from remuda.cli import say
    from remuda.cli.look import Look
    from remuda.cli.target import directory_of
    from remuda.model.errors import InvalidOption

    if offset and not id.isdigit():
        raise InvalidOption(f"an offset is a whole number, not {id!r}")
    tale = Look(directory_of(directory)).message(int(id) if offset else id)
    if as_json:
        say.json(
            {**_head(tale), "timeline": [_entry(*line) for line in _timeline(tale)], "queues": tale.document.queues}
        )
        return
    for name, value in _head(tale).items():
        if value not in (None, {}, ""):
            typer.echo(f"{name:10} {say.safe(_shown(value))}")
    created = tale.document.created
    say.table(
        ["time", "after", "queue", "what happened"],
        ((say.moment(time), say.span(time - created), queue, what) for time, queue, _, what in _timeline(tale)),
        right=["after"],
    )
    for view in tale.document.queues:
        if view.detail:
            typer.echo(f"in {say.safe(view.queue)}:\n{say.safe(view.detail.rstrip(), lines=True)}")


def _cells(row: Row) -> list[object]:
    from remuda.cli import say

    where, found = row.where, row.message
    note = where.reason or ""
    if where.due is not None:
        note = f"due {say.clock(where.due)}{': ' if note else ''}{note}"
    created = say.clock(found.created)
    return [found.id, found.name, where.kind, where.attempts, created, note, say.excerpt(found.body)]


def _plain(row: Row) -> dict[str, object]:
    from remuda.cli import say

    where, found = row.where, row.message
    return {
        "offset": row.offset,
        "id": found.id,
        "topic": found.name,
        "state": where.kind,
        "attempts": where.attempts,
        "created": say.iso(found.created),
        "due": say.iso(where.due),
        "reason": where.reason,
        "headers": dict(found.headers),
        "body": say.content(found.body),
    }


def _head(tale: Tale) -> dict[str, object]:
    from remuda.cli import say

    found = tale.document.message
    return {
        "id": found.id,
        "topic": found.name,
        "offset": tale.document.offset,
        "state": say.STATES[tale.document.state],
        "created": say.iso(tale.document.created),
        "due": say.iso(found.due),
        "expires": say.iso(found.expires),
        "object": found.object,
        "key": found.key,
        "mimeType": found.mime_type,
        "headers": dict(found.headers),
        "body": say.content(found.body),
    }


def _shown(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _timeline(tale: Tale) -> Iterator[tuple[int, str, str, str]]:
    """Time, queue, state and words, for each thing that happened."""
    from remuda.cli import say
    from remuda.model.state import State

    created = tale.document.created
    yield created, "", State.LOGGED.value, f"published as {tale.document.message.name}"
    if not tale.routed:
        yield created, "", State.UNCHANGED.value, "kept in the log; no queue took it"
    for queue in tale.routed:
        due = tale.document.message.due
        yield created, queue, State.QUEUED.value, "queued" if due is None else f"queued until {say.moment(due)}"
    for time, event in tale.events:
        words = say.STATES[event.state]
        if event.state is State.FETCHED:
            words = f"attempt {event.attempt} begins, by {event.consumer}"
        if event.reason:
            words += f": {event.reason}"
        if event.due is not None:
            words += f"; next at {say.moment(event.due)}"
        if event.who:
            words += f" (by {event.who})"
        yield time, event.queue, event.state.value, words


def _entry(time: int, queue: str, state: str, what: str) -> dict[str, object]:
    from remuda.cli import say

    return {"time": say.iso(time), "queue": queue or None, "state": state, "what": what}
