"""`remuda schedules`: periodic messages and their runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.commands.operations import AsJson, Who

if TYPE_CHECKING:
    from remuda.bus.scheduling.overview import ScheduleState
    from remuda.model.document import Document
    from remuda.model.message import Message

_COLUMNS = ("schedule", "rule", "state", "next run", "last run", "outcome", "missed")
_WAITS = ("waiting", "delayed", "in-flight")


def schedules(
    target: Annotated[
        str, typer.Argument(metavar="DIR|URL|APP", help="The directory, its amqp:// URL, or the app that uses it.")
    ],
    run: Annotated[
        str | None, typer.Option(metavar="SCHEDULE", help="Run this one at once, beside its planned runs.")
    ] = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """List periodic messages with their last and next run. Changes nothing without --run; remuda pause DIR SCHEDULE
    stops one."""
    from remuda.cli import output

    if run is not None:
        _run(target, run, who, as_json)
        return
    found = _listed(target)
    if as_json:
        import msgspec

        output.json(
            [
                {**msgspec.to_builtins(one), "last": output.iso(one.last), "next": output.iso(one.next)}
                for one in found
            ]
        )  # fmt: skip
        return
    output.table(_COLUMNS, map(_row, found), right=("missed",), empty="there are no schedules")


def _listed(target: str) -> list[ScheduleState]:
    from remuda.bus.scheduling import overview
    from remuda.cli.target import is_elsewhere, place_of

    place, now = place_of(target), time_ns() // 1000
    if not is_elsewhere(place):
        return overview.read_schedules(_DirectorySource(Path(place)), now)
    from remuda.broker.opening import open_broker

    with open_broker(place) as broker:
        return overview.schedules(broker, now)


def _run(target: str, name: str, who: str | None, as_json: bool) -> None:
    from remuda.bus.scheduling import overview
    from remuda.cli import output
    from remuda.cli.commands import operations

    with operations.open_bus(target) as bus:
        id = overview.run_now(bus.broker, name, bus.now(), who or operations.login_name())
    output.done(f"{name} runs as soon as a worker takes it, as message {id}", as_json, schedule=name, id=id)


class _DirectorySource:
    """The files of a directory, which no process need have open."""

    def __init__(self, directory: Path) -> None:
        from remuda.cli.viewing.directory_view import DirectoryView
        from remuda.log.eventlog import open_event_log

        self._log = open_event_log(str(directory))
        self._view = DirectoryView(directory)
        self.queues = self._view.queues

    def planned(self, queue: str) -> Iterable[Message]:
        return self._view.newest(queue, _WAITS, 100)  # the next run was planned last, behind what waits for retries

    def document(self, id: str) -> Document:
        from remuda.cli.viewing.message_history import message_history

        return message_history(self._log, id).document


def _row(one: ScheduleState) -> tuple[object, ...]:
    return one.name, one.rule, one.word, _moment(one.next), _moment(one.last), one.outcome or "", one.missed


def _moment(time: int | None) -> str:
    from remuda.cli import output

    return "never" if time is None else output.moment(time)[:-4]
