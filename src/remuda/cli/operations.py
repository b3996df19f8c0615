"""Commands that change a queue: reprocess, clear, forget, cancel, move, pause, resume. The log records who did what."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.completion import queue_names

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

Directory = Annotated[
    str, typer.Argument(metavar="DIR|URL|APP", help="The directory, the URL of a broker, or the app that uses it.")
]
Queue = Annotated[str, typer.Argument(help="The queue's name.", autocompletion=queue_names)]
Who = Annotated[str | None, typer.Option(help="Who is acting; your login name by default.")]
Reason = Annotated[str | None, typer.Option(help="Only messages whose reason contains this text.")]
Since = Annotated[
    str | None, typer.Option(help="Only messages that ended at or after this time; 10m means ten minutes ago.")
]
Until = Annotated[str | None, typer.Option(help="Only messages that ended before this time.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def reprocess(
    directory: Directory,
    queue: Queue,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    dead_only: Annotated[bool, typer.Option("--dead-only", help="Leave out messages that wait for a retry.")] = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Send failed messages back to their queue. Dead, invalid and unwanted messages, and those that wait for a retry,
    start again with a fresh count of attempts."""
    from remuda.cli import output

    with open_bus(directory) as bus:
        number = bus.reprocess(
            queue,
            waiting=not dead_only,
            reason=reason,
            since=_point("--since", since),
            until=_point("--until", until),
            who=who or login_name(),
        )
    output.done(f"{output.count(number, 'message')} back in {queue}", as_json, queue=queue, reprocessed=number)


def clear(
    directory: Directory,
    queue: Queue,
    topic: Annotated[str | None, typer.Option(help="Only messages with this topic.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only messages whose last failure contains this text.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only messages published at or after this time; 10m means ten minutes ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only messages published before this time.")] = None,
    yes: Yes = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """End all waiting messages of a queue, or those that match. They become dead letters and can be reprocessed."""
    from remuda.cli import output

    with open_bus(directory) as bus:
        info = bus.broker.queue(queue)
        some = any((topic, reason, since, until))
        waiting = output.count(info.waiting + info.delayed, "waiting message")
        question = f"Clear those of {waiting} in {queue} that match?" if some else f"Clear {waiting} from {queue}?"
        output.confirm(question, yes)
        number = bus.clear(
            queue,
            topic=topic,
            reason=reason,
            since=_point("--since", since),
            until=_point("--until", until),
            who=who or login_name(),
        )
    output.done(f"{output.count(number, 'message')} cleared from {queue}", as_json, queue=queue, cleared=number)


def forget(
    directory: Directory,
    queue: Queue,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good. They can no longer be reprocessed."""
    from remuda.cli import output

    with open_bus(directory) as bus:
        info = bus.broker.queue(queue)
        dead = output.count(info.dead + info.invalid + info.not_interested, "dead letter")
        output.confirm(f"Forget up to {dead} of {queue} for good?", yes)
        number = bus.forget(
            queue,
            reason=reason,
            since=_point("--since", since),
            until=_point("--until", until),
            who=who or login_name(),
        )
    output.done(f"{output.count(number, 'dead letter')} of {queue} forgotten", as_json, queue=queue, forgotten=number)


def cancel(
    directory: Directory,
    id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a waiting message. It may wait for its turn, its time or a retry."""
    from remuda.cli import output

    with open_bus(directory) as bus:
        cancelled = bus.cancel(id, who=who or login_name())
        word = bus.status(id).word
    text = f"{id} is cancelled" if cancelled else f"{id} was not cancelled: it is {word}"
    output.done(text, as_json, id=id, cancelled=cancelled, status=word)
    if not cancelled:
        raise typer.Exit(1)


def move(
    directory: Directory,
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="The queue that holds the messages.", autocompletion=queue_names)
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="The queue that receives them.", autocompletion=queue_names)
    ],
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Move waiting messages to another queue. Useful after renaming a handler."""
    from remuda.bus.broker_api import move_waiting
    from remuda.cli import output
    from remuda.model.errors import InvalidOption

    if source == target:
        raise InvalidOption(f"FROM and TO are both {source}; name two different queues")
    with open_bus(directory) as bus:
        bus.broker.queue(target)
        number = move_waiting(bus.broker, source, target, who or login_name())
        left = bus.broker.queue(source).delayed
    text = f"{output.count(number, 'message')} moved from {source} to {target}"
    if left:
        text += f"; {output.count(left, 'delayed message')} left in {source}; run this again when due"
    output.done(text, as_json, source=source, target=target, moved=number, left=left)


def pause(
    directory: Directory,
    queue: Queue,
    refuse: Annotated[bool, typer.Option("--refuse", help="Also refuse publishers.")] = False,
    only_publishers: Annotated[
        bool, typer.Option("--only-publishers", help="Refuse publishers, but keep delivering.")
    ] = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Stop delivering a queue's messages until it is resumed. It still accepts messages, unless --refuse."""
    from remuda.cli import output
    from remuda.cli.target import shown_target
    from remuda.model.errors import InvalidOption

    if refuse and only_publishers:
        raise InvalidOption("give --refuse or --only-publishers, not both")
    status = "paused" if refuse else "only-consume" if only_publishers else "only-publish"
    what = {
        "paused": "is paused and refuses publishers",
        "only-consume": "refuses publishers",
        "only-publish": "is paused; it still accepts messages",
    }[status]
    with open_bus(directory) as bus:
        bus.broker.set_status(queue, status, who=who or login_name())
    text = f"{queue} {what}; to resume it: remuda resume {shown_target(directory)} {queue}"
    output.done(text, as_json, queue=queue, status=status)


def resume(directory: Directory, queue: Queue, who: Who = None, as_json: AsJson = False) -> None:
    """Resume a paused queue."""
    from remuda.cli import output

    with open_bus(directory) as bus:
        bus.broker.set_status(queue, "running", who=who or login_name())
    output.done(f"{queue} is running", as_json, queue=queue, status="running")


@contextmanager
def open_bus(target: str) -> Iterator[Bus]:
    """A bus without handlers on the target's broker, so that the command changes nothing else."""
    from remuda.bus.broker_api import open_broker
    from remuda.bus.bus import Bus
    from remuda.bus.settings.settings import Settings
    from remuda.cli.target import place_of

    place = place_of(target)
    bus = Bus(place, settings=Settings())
    bus._lazy.broker = open_broker(place, clock=bus._lazy.clock)
    try:
        yield bus
    finally:
        bus.close()


def _point(option: str, text: str | None) -> int | None:
    from remuda.cli.times import point

    return None if text is None else point(text, option)


def login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "command line"
