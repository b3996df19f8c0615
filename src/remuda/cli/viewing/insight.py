"""`remuda history` and `remuda errors`: what queues did, and what failed, over all queues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.commands.operations import AsJson, Directory, Who, Yes
from remuda.cli.completion import queue_names

if TYPE_CHECKING:
    from remuda.history.history import History, Percentiles
    from remuda.server.http.service import MessagingService

_TIMES = ("wait p50", "wait p95", "wait p99", "handling p50", "handling p95", "handling p99")
_HISTORY = ("queue", "published", "done", "failed", "dead letters", *_TIMES)
_ERRORS = ("group", "exception", "place", "dead letters", "failures", "first seen", "last seen", "queues")
_MANY = 3


def history(
    target: Directory,
    over: Annotated[str, typer.Option(help="How far back: 1h, 24h or 30d.")] = "24h",
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only this queue.", autocompletion=queue_names)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what queues did: messages, failures, waits and handling times, counted from the log. Changes no queue."""
    from remuda.cli import output
    from remuda.history.history import read_span

    read_span(over)
    with _counted(target, quiet=as_json) as found:
        totals = [one for one in found.totals(over) if queue in (None, one.queue)]
        points = found.points(over, queue) if as_json else []
        starts = found.starts(over)
    if as_json:
        output.json({"over": over, "queue": queue, "queues": totals, "points": points, "starts": starts})
        return
    rows = (
        (one.queue, one.published, one.done, one.failed, one.dead, *_spans(one.wait), *_spans(one.took))
        for one in totals
    )
    output.table(_HISTORY, rows, right=_HISTORY[1:])


def errors(
    target: Directory,
    retry: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Send this group's dead letters back to their queues.")
    ] = None,
    forget: Annotated[str | None, typer.Option(metavar="GROUP", help="Delete this group's dead letters.")] = None,
    mute: Annotated[str | None, typer.Option(metavar="GROUP", help="List this group apart from the others.")] = None,
    unmute: Annotated[str | None, typer.Option(metavar="GROUP", help="List it with the others again.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="List the muted groups too.")] = False,
    yes: Yes = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """List failures over all queues, by exception and place, or act on one group."""
    from remuda.cli import output
    from remuda.cli.commands import operations
    from remuda.cli.progress import reading
    from remuda.server.http.pages.errors import ACTIONS, act, listed

    asked = dict(zip(ACTIONS, (retry, forget, mute, unmute), strict=True))
    with _service(target) as service:
        with service.broker.log() as log:
            end = log.ends().next_offset
        with reading(end, quiet=as_json) as progress:
            service.broker.history.catch_up(progress=progress)
        found = listed(service)
        for action, key in asked.items():
            if key is None:
                continue
            group = next((one for one in found if one.key == key), None)
            if action == "forget" and group is not None and group.left:
                left = output.count(group.left, "dead letter")
                output.confirm(f"Forget {left} of {', '.join(group.dead)} that failed with {group.exception}?", yes)
            count = act(service, key, action, who or operations.login_name())
            done = {
                "reprocess": f"{output.count(count, 'message')} sent back",
                "forget": f"{output.count(count, 'dead letter')} forgotten",
                "mute": f"group {key} is muted", "unmute": f"group {key} is no longer muted",
            }  # fmt: skip
            output.done(done[action], as_json, group=key, action=action, count=count)
    if any(asked.values()):
        return
    shown = [one for one in found if all_ or not one.muted_by]
    if as_json:
        output.json(shown)
        return
    rows = (
        (
            one.key, one.exception, one.place, one.left, one.failures, output.clock(one.first),
            output.clock(one.last), _some(one.queues),
        )
        for one in shown
    )  # fmt: skip
    output.table(_ERRORS, rows, right=("dead letters", "failures"))


@contextmanager
def _counted(target: str, *, quiet: bool) -> Iterator[History]:
    """The history of a target, counted up to the end of the log; in a directory it is kept for the next time."""
    from pathlib import Path

    from remuda.cli.progress import reading
    from remuda.cli.target import is_elsewhere, log_of, place_of
    from remuda.history.history import History
    from remuda.history.history_store import HistoryUnusable
    from remuda.log.eventlog import open_event_log
    from remuda.model.errors import DiskFull

    place = place_of(target)
    log = open_event_log(log_of(target))
    try:
        found = History(log, None if is_elsewhere(place) else Path(place))
    except (HistoryUnusable, DiskFull):  # such as a directory that may only be read
        found = History(log, None)
    try:
        with reading(log.ends().next_offset, quiet=quiet) as progress:
            found.catch_up(progress=progress)
        yield found
    finally:
        found.close()


@contextmanager
def _service(target: str) -> Iterator[MessagingService]:
    from remuda.cli.commands.operations import open_bus
    from remuda.server.http.service import MessagingService

    with open_bus(target) as bus:
        service = MessagingService(bus)
        try:
            yield service
        finally:
            service.close()


def _spans(found: Percentiles) -> tuple[str, ...]:
    from remuda.cli import output

    return tuple("" if one is None else output.span(one) for one in (found.p50, found.p95, found.p99))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MANY]) + (f" and {len(names) - _MANY} more" if len(names) > _MANY else "")
