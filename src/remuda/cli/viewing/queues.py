"""`remuda queues`: all queues with their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.commands.operations import Directory

if TYPE_CHECKING:
    from remuda.model.operations.results import QueueInfo

_COLUMNS = ("queue", "waiting", "in flight", "delayed", "dead", "invalid", "not interested", "done", "status")
_RARE = ("invalid", "not interested")
"""Shown only if there are any."""
_NOT_ON_RABBITMQ = {"in flight": "inFlight", "delayed": "delayed", "done": "done", "counts": "counts"}
"""Columns that RabbitMQ has no numbers for, and their names in JSON."""


def queues(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    remove: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Remove this queue, its messages and its subscriptions.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """List the queues. Works beside a running process; changes nothing without --remove."""
    if remove is not None:
        _remove(directory, remove, yes, as_json)
        return
    from remuda.cli import output

    found, from_broker, partial = _found(directory)
    if as_json:
        output.json([{**_plain(info), **dict.fromkeys(_NOT_ON_RABBITMQ.values() if partial else ())} for info in found])
        return
    rows = [_row(info, from_broker) for info in found]
    known = [name for name in _COLUMNS if not partial or name not in _NOT_ON_RABBITMQ]
    columns = [name for name in known if name not in _RARE or any(row[name] for row in rows)]
    output.table(columns, ([row[name] for name in columns] for row in rows), right=columns[1:-1])


def _found(target: str) -> tuple[list[QueueInfo], bool, bool]:
    """The queues, whether a broker told of them, with their consumers, or files without, and whether some of their
    numbers are known only to the processes that handle the messages."""
    from pathlib import Path

    from remuda.cli.target import is_elsewhere, is_rabbitmq, place_of
    from remuda.cli.viewing.directory_view import DirectoryView

    place = place_of(target)
    if not is_elsewhere(place):
        return DirectoryView(Path(place)).queues(), False, False
    from remuda.broker.opening import open_broker

    with open_broker(place) as broker:
        return broker.queues(), True, is_rabbitmq(place)


def _remove(directory: str, queue: str, yes: bool, as_json: bool) -> None:
    from remuda.cli import output
    from remuda.cli.commands import operations

    with operations.open_bus(directory) as bus:
        info = bus.broker.queue(queue)
        held = output.count(info.size + info.dead + info.invalid + info.not_interested, "message")
        output.confirm(f"Remove {queue} and {held} in it?", yes)
        bus.broker.remove_queue(queue, who=operations.login_name())
    output.done(f"{queue} is removed", as_json, queue=queue, removed=True)


def _row(info: QueueInfo, consumers_known: bool) -> dict[str, object]:
    from remuda.model.queues.options import status_word

    taken = len(info.consumers) + info.pulls + info.in_flight
    cells = (
        info.name, info.waiting, info.in_flight, info.delayed, info.dead, info.invalid, info.not_interested,
        _done(info), status_word(info.status, taken if consumers_known else None),
    )  # fmt: skip
    return dict(zip(_COLUMNS, cells, strict=True))


def _plain(info: QueueInfo) -> dict[str, object]:
    return {
        "queue": info.name,
        "waiting": info.waiting,
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
