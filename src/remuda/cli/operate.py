"""What an operator does to a queue: reprocess, clear, pause, resume. All of it is logged with who did it."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from remuda.broker.port import Broker

Directory = Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")]
Queue = Annotated[str, typer.Argument(help="The queue's name.")]
Who = Annotated[str | None, typer.Option(help="Who does it; your login name without it.")]


def reprocess(
    directory: Directory,
    queue: Queue,
    reason: Annotated[str | None, typer.Option(help="Only those whose reason holds this text.")] = None,
    since: Annotated[str | None, typer.Option(help="Only those that ended at or after this time, or 10m ago.")] = None,
    until: Annotated[str | None, typer.Option(help="Only those that ended before this time.")] = None,
    who: Who = None,
) -> None:
    """Send dead, invalid and unwanted messages back to their queue, with a fresh count of attempts."""
    from remuda.cli import say
    from remuda.cli.times import point
    from remuda.model.filters import MessageFilter
    from remuda.model.state import PARKED, State

    selection = MessageFilter(states=PARKED | {State.RETRY}, reason=reason, since=point(since) if since else 0, until=point(until) if until else None)
    with _broker(directory) as broker:
        number = broker.reprocess(queue, selection, who=who or _login())
    typer.echo(f"{say.count(number, 'message')} back in {queue}")


def clear(
    directory: Directory,
    queue: Queue,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    who: Who = None,
) -> None:
    """End everything that waits in a queue. What is cleared counts as dead and can be reprocessed."""
    from remuda.cli import say

    with _broker(directory) as broker:
        info = broker.queue(queue)
        waiting = say.count(info.waiting + info.delayed, "waiting message")
        if not yes and not typer.confirm(f"end {waiting} of {queue}?", err=True):
            typer.echo("nothing was changed")
            raise typer.Exit(1)
        number = broker.clear(queue, who=who or _login())
    typer.echo(f"{say.count(number, 'message')} of {queue} ended")


def pause(directory: Directory, queue: Queue, who: Who = None) -> None:
    """Stop a queue: it takes in and gives out nothing until it is resumed."""
    with _broker(directory) as broker:
        broker.set_status(queue, "paused", who=who or _login())
    typer.echo(f"{queue} is paused; remuda resume {directory} {queue} lets it go on")


def resume(directory: Directory, queue: Queue, who: Who = None) -> None:
    """Let a paused queue go on."""
    with _broker(directory) as broker:
        broker.set_status(queue, "running", who=who or _login())
    typer.echo(f"{queue} is running")


@contextmanager
def _broker(target: str) -> Iterator[Broker]:
    from remuda.broker.opening import open_broker
    from remuda.cli.target import directory_of

    with open_broker(directory_of(target)) as broker:
        yield broker


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "command line"
