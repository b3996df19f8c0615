"""`remuda messages` and `remuda message`: the messages of a queue, and the history of one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.commands.operations import Directory
from remuda.cli.completion import queue_names

if TYPE_CHECKING:
    from remuda.cli.viewing.directory_view import Row
    from remuda.cli.viewing.message_history import MessageHistory

LOG = "The directory, the amqp:// URL of a log, or the app that uses it."
_BLOCKS = frozenset({"MessagePack", "bytes"})
"""The kinds of bodies that are shown in lines of their own."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def messages(
    directory: Directory,
    queue: Annotated[str, typer.Argument(help="The queue's name.", autocompletion=queue_names)],
    state: Annotated[
        str | None, typer.Option(help="waiting, delayed, in-flight, dead, invalid or not-interested; all by default.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most messages to list.")] = 50,
    as_json: Json = False,
) -> None:
    """List a queue's messages. Shows those waiting, in flight, or ended without success; changes nothing."""
    from pathlib import Path

    from remuda.cli import output
    from remuda.cli.target import is_elsewhere, place_of
    from remuda.cli.viewing.directory_view import DirectoryView, check_kind

    kinds = check_kind(state)
    place = place_of(directory)
    if is_elsewhere(place):
        from remuda.cli.viewing.remote_messages import ended_rows

        rows = ended_rows(place, queue, state, limit)
    else:
        rows = DirectoryView(Path(place)).rows(queue, kinds, limit)
    if as_json:
        output.json([_plain(row) for row in rows])
        return
    columns = ["id", "topic", "state", "tries", "created", "note", "body"]
    which = "" if state is None else f" that is {state}"
    output.table(columns, map(_cells, rows), right=["tries"], empty=f"{queue} holds no message{which}")


def message(
    log: Annotated[str, typer.Argument(metavar="DIR|URL|APP", help=LOG)],
    id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    offset: Annotated[bool, typer.Option("--offset", help="ID is an offset in the log.")] = False,
    as_command: Annotated[
        bool, typer.Option("--as-command", help="Print only the `remuda publish` line for the same message.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show one message's history. From publish to its end in every queue; changes nothing."""
    from remuda.bus.publishing.readable import readable
    from remuda.cli import output
    from remuda.cli.target import log_of
    from remuda.cli.viewing.message_history import message_history
    from remuda.log.eventlog import open_event_log
    from remuda.model.errors import InvalidOption

    if offset and not id.isdigit():
        raise InvalidOption(f"an offset is a whole number, not {id!r}")
    history = message_history(open_event_log(log_of(log)), int(id) if offset else id)
    if as_command:
        typer.echo(_command(history, log))
        return
    if as_json:
        output.json(
            {
                **_head(history),
                "timeline": [_entry(*line) for line in _timeline(history)],
                "queues": history.document.queues,
            }
        )
        return
    found = history.document.message
    read = readable(found.body, found.mime_type)
    for name, value in _head(history).items():
        if value not in (None, {}, "") and (name != "body" or read.kind not in _BLOCKS):
            typer.echo(f"{name:10} {output.safe(_shown(value))}")
    if read.kind in _BLOCKS:
        typer.echo(f"body, {read.kind}:\n{read.text}{f'{chr(10)}…' if read.cut else ''}")
    created = history.document.created
    output.table(
        ["time", "after", "queue", "what happened"],
        (
            (output.moment(time), output.span(time - created), queue, what)
            for time, queue, _, what in _timeline(history)
        ),
        right=["after"],
    )
    for view in history.document.queues:
        if view.detail:
            typer.echo(f"in {output.safe(view.queue)}:\n{output.safe(view.detail.rstrip(), lines=True)}")


def _command(history: MessageHistory, target: str) -> str:
    from remuda.bus.publishing.command_line import publish_line
    from remuda.cli.target import shown_target
    from remuda.model.errors import InvalidOption

    line = publish_line(history.document.message, shown_target(target))
    if line is None:
        raise InvalidOption("the message is too long for a line, or is not such that `remuda publish` could publish it")
    if line.without:
        typer.echo(f"not in the line: the headers {', '.join(map(repr, line.without))}", err=True)
    return line.text


def _cells(row: Row) -> list[object]:
    from remuda.cli import output

    where, found = row.where, row.message
    note = where.reason or ""
    if where.due is not None:
        note = f"due {output.clock(where.due)}{': ' if note else ''}{note}"
    created = output.clock(found.created)
    return [found.id, found.name, where.kind, where.attempts, created, note, output.excerpt(found.body)]


def _plain(row: Row) -> dict[str, object]:
    from remuda.cli import output

    where, found = row.where, row.message
    return {
        "offset": row.offset,
        "id": found.id,
        "name": found.name,
        "topics": found.topics or (found.name,),
        "timestamp": output.iso(found.timestamp),
        "state": where.kind,
        "attempts": where.attempts,
        "created": output.iso(found.created),
        "due": output.iso(where.due),
        "reason": where.reason,
        "headers": dict(found.headers),
        "body": output.content(found.body),
    }


def _head(history: MessageHistory) -> dict[str, object]:
    from remuda.cli import output
    from remuda.model.state import WORDS

    found = history.document.message
    return {
        "id": found.id,
        "name": found.name,
        "topics": found.topics or (found.name,),
        "topicCount": history.document.topic_count,
        "offset": history.document.offset,
        "state": WORDS[history.document.state],
        **history.document.flags,
        "timestamp": output.iso(found.timestamp),
        "created": output.iso(history.document.created),
        "due": output.iso(found.due),
        "expires": output.iso(found.expires),
        "object": found.object,
        "key": found.key,
        "mimeType": found.mime_type,
        "headers": dict(found.headers),
        "body": output.content(found.body),
    }


def _shown(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _timeline(history: MessageHistory) -> Iterator[tuple[int, str, str, str]]:
    """Time, queue, state and description of each thing that happened."""
    from remuda.cli import output
    from remuda.model.life import in_words
    from remuda.model.state import WORDS, State

    created = history.document.created
    yield created, "", State.LOGGED.value, f"published as {history.document.message.name}"
    if not history.routed:
        yield created, "", State.UNCHANGED.value, "kept in the log; no queue took it"
    for queue in history.routed:
        due = history.document.message.due
        yield created, queue, State.QUEUED.value, "queued" if due is None else f"queued until {output.moment(due)}"
    for time, event in history.events:
        words = in_words(WORDS[event.state], event.reason, event.to)
        if event.state is State.FETCHED:
            words = f"attempt {event.attempt} begins, by {event.consumer}"
        if event.due is not None:
            words += f"; next at {output.moment(event.due)}"
        if event.who:
            words += f" (by {event.who})"
        yield time, event.queue, event.state.value, words
    for change in history.forgotten:
        yield change.time, change.queue, State.DEAD.value, f"forgotten (by {change.who})"


def _entry(time: int, queue: str, state: str, what: str) -> dict[str, object]:
    from remuda.cli import output

    return {"time": output.iso(time), "queue": queue or None, "state": state, "what": what}
