"""`remuda queues`: what lies where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from remuda.model.results import QueueInfo

_COLUMNS = ("queue", "depth", "in flight", "delayed", "dead", "invalid", "unwanted", "done", "consumers", "status")
_RARE = ("invalid", "unwanted")
"""Shown only where there are any."""


def queues(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the queues. Works beside the process that has the directory open; changes nothing."""
    from remuda.cli import say
    from remuda.cli.look import Look
    from remuda.cli.target import directory_of

    found = Look(directory_of(directory)).queues()
    if as_json:
        say.json([_plain(info) for info in found])
        return
    rows = [_row(info) for info in found]
    columns = [name for name in _COLUMNS if name not in _RARE or any(row[name] for row in rows)]
    say.table(columns, ([row[name] for name in columns] for row in rows), right=columns[1:-1])


def _row(info: QueueInfo) -> dict[str, object]:
    cells = (
        info.name, info.waiting, info.in_flight, info.delayed, info.dead, info.invalid, info.not_interested,
        _done(info), len(info.consumers), info.status.value,
    )  # fmt: skip
    return dict(zip(_COLUMNS, cells, strict=True))


def _plain(info: QueueInfo) -> dict[str, object]:
    return {
        "queue": info.name,
        "depth": info.waiting,
        "inFlight": info.in_flight,
        "delayed": info.delayed,
        "dead": info.dead,
        "invalid": info.invalid,
        "notInterested": info.not_interested,
        "done": _done(info),
        "consumers": list(info.consumers),
        "status": info.status.value,
        "type": info.options.type.value,
        "counts": {state.value: number for state, number in info.counts.items()},
    }


def _done(info: QueueInfo) -> int:
    from remuda.model.state import State

    return info.counts.get(State.SUCCESS, 0)
