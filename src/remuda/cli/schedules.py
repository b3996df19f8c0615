"""`remuda schedules`: what runs when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from remuda.cli.directory_view import Row

_COLUMNS = ("schedule", "rule", "last run", "next run", "status")


def schedules(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List periodic messages with their last and next run. Changes nothing; remuda pause DIR SCHEDULE stops one."""
    from remuda.bus.scheduling.schedule import TOPIC
    from remuda.cli import output
    from remuda.cli.directory_view import DirectoryView
    from remuda.cli.target import directory_of

    view = DirectoryView(directory_of(directory))
    found = []
    for info in view.queues():
        if any(TOPIC in pattern for pattern in info.options.patterns):
            planned = [row for row in view.rows(info.name, ("waiting", "delayed", "in-flight"), 100) if _is_run(row)]
            if planned:
                found.append(_entry(max(planned, key=_due), info.status.value))
    if as_json:
        output.json([{**row, "last": output.iso(row["last"]), "next": output.iso(row["next"])} for row in found])
        return
    cells = [[row["name"], row["rule"], _moment(row["last"]), _moment(row["next"]), row["status"]] for row in found]
    output.table(_COLUMNS, cells)


def _is_run(row: Row) -> bool:
    from remuda.bus.scheduling.schedule import NAME

    return NAME in row.message.headers


def _due(row: Row) -> int:
    return row.message.due or 0


def _entry(row: Row, status: str) -> dict[str, Any]:
    from remuda.bus.scheduling.schedule import LAST, NAME, RULE

    headers = row.message.headers
    last = headers.get(LAST, "")
    return {
        "name": headers[NAME],
        "rule": headers.get(RULE, ""),
        "last": int(last) if last.isdigit() else None,
        "next": row.message.due,
        "status": "paused" if status in ("only-publish", "paused") else status,
    }


def _moment(time: object) -> str:
    from remuda.cli import output

    return output.moment(time)[:-4] if isinstance(time, int) else "never"
