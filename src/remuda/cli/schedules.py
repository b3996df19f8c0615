"""`remuda schedules`: periodic messages and their runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from remuda.model.message import Message

_COLUMNS = ("schedule", "rule", "last run", "next run", "status")


def schedules(
    target: Annotated[
        str, typer.Argument(metavar="DIR|URL|APP", help="The directory, its amqp:// URL, or the app that uses it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List periodic messages with their last and next run. Changes nothing; remuda pause DIR SCHEDULE stops one."""
    from remuda.cli import output
    from remuda.cli.target import log_of
    from remuda.model.urls import AMQP, AMQPS, parse_url

    place = log_of(target)
    found = _on_rabbitmq(place) if parse_url(place).scheme in (AMQP, AMQPS) else _in_directory(place)
    if as_json:
        output.json([{**row, "last": output.iso(row["last"]), "next": output.iso(row["next"])} for row in found])
        return
    cells = [[row["name"], row["rule"], _moment(row["last"]), _moment(row["next"]), row["status"]] for row in found]
    output.table(_COLUMNS, cells)


def _in_directory(directory: str) -> list[dict[str, Any]]:
    from remuda.bus.scheduling.schedule import NAME, TOPIC
    from remuda.cli.directory_view import DirectoryView

    view, found = DirectoryView(Path(directory)), []
    for info in view.queues():
        if any(TOPIC in pattern for pattern in info.options.patterns):
            rows = view.rows(info.name, ("waiting", "delayed", "in-flight"), 100)
            planned = [row.message for row in rows if NAME in row.message.headers]
            if planned:
                newest = max(planned, key=lambda message: message.due or 0)
                found.append(_entry(newest.headers[NAME], newest.due, newest, info.status.value))
    return found


def _on_rabbitmq(url: str) -> list[dict[str, Any]]:
    """The run ledger says when each schedule is due, its message in the event log the rest."""
    from remuda.broker.opening import open_broker
    from remuda.bus.scheduling.runs import run_ledger
    from remuda.bus.scheduling.schedule import run_id
    from remuda.model.errors import NotFound, StorageError, Unsupported

    found = []
    with open_broker(url) as broker:
        ledger = run_ledger(broker)
        for name, due in ledger.planned().items() if ledger is not None else ():
            run: Message | None = None
            with suppress(NotFound, StorageError, Unsupported):  # there is no log, or it no longer has the message
                run = broker.message(run_id(name, due)).message
            status = "unknown"
            with suppress(NotFound):
                status = broker.queue(name).status.value
            found.append(_entry(name, due, run, status))
    return found


def _entry(name: str, due: int | None, run: Message | None, status: str) -> dict[str, Any]:
    from remuda.bus.scheduling.schedule import LAST, RULE

    headers = run.headers if run is not None else {}
    last = headers.get(LAST, "")
    return {
        "name": name,
        "rule": headers.get(RULE, ""),
        "last": int(last) if last.isdigit() else None,
        "next": due,
        "status": "paused" if status in ("only-publish", "paused") else status,
    }


def _moment(time: object) -> str:
    from remuda.cli import output

    return output.moment(time)[:-4] if isinstance(time, int) else "never"
