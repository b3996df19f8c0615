"""`remuda log tail`: the event log as it grows. Read-only, beside a running broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from remuda.log.eventlog import EventLog
    from remuda.model.records import Events, QueueChange

_POLL = 0.2


def tail(
    place: Annotated[
        str,
        typer.Argument(metavar="DIR|URL|APP", help="The directory, the amqp:// URL of a log, or the app that uses it."),
    ],
    start: Annotated[int | None, typer.Option("--from", min=0, help="Begin at this offset; 0 is the oldest.")] = None,
    since: Annotated[str | None, typer.Option(help="Begin at this time; 10m means ten minutes ago.")] = None,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, help="How many of the last entries to print, without --from or --since."),
    ] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing as the log grows.")] = False,
    events: Annotated[bool, typer.Option("--events", help="Print events instead of messages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
) -> None:
    """Print the event log, oldest first."""
    from remuda.cli import output
    from remuda.cli.target import log_of
    from remuda.cli.times import point
    from remuda.log.eventlog import open_event_log
    from remuda.model.errors import InvalidOption

    if start is not None and since is not None:
        raise InvalidOption("--from and --since both say where to begin; give one of them")
    log = open_event_log(log_of(place))
    moment = None if since is None else point(since, "--since")
    if moment is not None:
        begin = log.position_at(moment) if events else log.offset_at(moment)
    elif start is not None:
        begin = start
    else:
        begin = log.position_of_last(lines) if events else log.offset_of_last(lines)
    show = output.json if as_json else _print
    try:
        for entry in _events(log, begin, moment, follow) if events else _messages(log, begin, follow):
            show(entry)
    except KeyboardInterrupt:
        return


def _messages(log: EventLog, begin: int, follow: bool) -> Iterator[dict[str, Any]]:
    from remuda.cli import output
    from remuda.model.messages import cell

    for record in log.follow_messages(begin, poll=_POLL) if follow else log.messages(begin):
        for row, message in enumerate(record.messages):
            yield {
                "offset": record.first + row,
                "time": output.iso(message.created),
                "id": message.id,
                "name": message.name,
                "topics": message.topics or (message.name,),
                "timestamp": output.iso(message.timestamp),
                "queues": list(cell(record.queues, row)),
                "headers": dict(message.headers),
                "body": output.content(message.body),
            }


def _events(log: EventLog, begin: int, since: int | None, follow: bool) -> Iterator[dict[str, Any]]:
    """Events, and between them changes that users made to queues, in the order of their times."""
    shown, earliest = 0, since if begin else since or 0
    while True:
        changes = log.changes()
        for record in log.events(begin):
            earliest = record.time if earliest is None else earliest
            while shown < len(changes) and changes[shown].time <= record.time:
                if changes[shown].time >= earliest:
                    yield _change(changes[shown])
                shown += 1
            yield from _rows(record)
            begin = record.first + len(record)
        for change in changes[shown:]:
            if earliest is None or change.time >= earliest:
                yield _change(change)
        shown, earliest = len(changes), earliest or 0
        if not follow:
            return
        time.sleep(_POLL)


def _change(change: QueueChange) -> dict[str, Any]:
    from remuda.cli import output
    from remuda.model.records import change_words

    entry: dict[str, Any] = {
        "time": output.iso(change.time), "queue": change.queue, "change": change.action, "what": change_words(change),
        "who": change.who,
    }  # fmt: skip
    if change.count:
        entry |= {"offset": change.first, "count": change.count}
    return entry


def _rows(record: Events) -> Iterator[dict[str, Any]]:
    from remuda.cli import output

    for row, event in enumerate(record.rows):
        entry: dict[str, Any] = {
            "position": record.first + row,
            "time": output.iso(record.time),
            "queue": event.queue,
            "state": event.state.value,
            "offset": event.first,
            "count": event.count,
        }
        for name in ("consumer", "attempt", "reason", "due", "who"):
            if value := getattr(event, name):
                entry[name] = output.iso(value) if name == "due" else value
        if event.to is not None:
            entry["movedTo"] = event.to
        yield entry


def _print(entry: dict[str, Any]) -> None:
    """One line for people."""
    from remuda.cli import output
    from remuda.model.life import in_words
    from remuda.model.state import WORDS, State

    clock = str(entry["time"])[11:23]
    if "change" in entry:
        typer.echo(output.safe(f"{'':>6}  {clock}  {entry['queue']}  {entry['what']} by {entry['who']}"))
        return
    if "position" in entry:
        last = entry["offset"] + entry["count"] - 1
        which = f"#{entry['offset']}" if entry["count"] == 1 else f"#{entry['offset']}-{last}"
        words = f"{entry['position']:>6}  {clock}  {entry['queue']}  {which}  "
        words += in_words(WORDS[State(entry["state"])], entry.get("reason"), entry.get("movedTo"))
        if entry["state"] == State.FETCHED.value:
            words += f", attempt {entry['attempt']}, by {entry['consumer']}"
        for label, name in (("; next at ", "due"), (" by ", "who")):
            if name in entry:
                words += f"{label}{entry[name]}"
        typer.echo(output.safe(words))
        return
    import msgspec

    queues = ", ".join(entry["queues"]) or "no queue"
    body = output.excerpt(msgspec.json.encode(entry["body"]))
    typer.echo(output.safe(f"#{entry['offset']:<6} {clock}  {entry['name']}  {entry['id']}  → {queues}  {body}"))
