"""Commands that change a queue, made from the declarations of the verbs, and `cancel`. The log records who did what."""

from __future__ import annotations

import getpass
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from remuda.cli.completion import queue_names
from remuda.model.operations.filters import MessageFilter, read_states
from remuda.model.operations.verbs import Parameter, Verb
from remuda.model.queues.options import Status
from remuda.model.state import State

if TYPE_CHECKING:
    from remuda.bus.bus import Bus
    from remuda.bus.message_operations import IfRunning

_CHOICE: Final = {
    "state": "Only messages in these states, by letters or names such as dead,invalid; {states} by default.",
    "reason": "Only messages whose reason contains this text.",
    "since": "Only messages that ended at or after this time; 10m means ten minutes ago.",
    "until": "Only messages that ended before this time.",
}
Directory = Annotated[
    str, typer.Argument(metavar="DIR|URL|APP", help="The directory, the URL of a broker, or the app that uses it.")
]
Queue = Annotated[
    str, typer.Argument(help="The queue's name; with *, all queues that are named so.", autocompletion=queue_names)
]
Who = Annotated[str | None, typer.Option(help="Who is acting; your login name by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def cancel(
    directory: Directory,
    id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    leave_running: Annotated[bool, typer.Option("--leave-running", help="Let a handler that runs go on.")] = False,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a message. One that waits for its turn, its time or a retry ends at once; if it is being handled, its
    handler is interrupted."""
    from remuda.cli import output

    with open_bus(directory) as bus:
        running: IfRunning = "leave" if leave_running else "interrupt"
        cancelled = bool(bus.cancel(id, who=who or login_name(), running=running))
        word = bus.status(id).word
    text = f"{id} is cancelled" if cancelled else f"{id} was not cancelled: it is {word}"
    if cancelled and word == "running":
        text = f"{id} is being cancelled: its handler is interrupted within seconds"
    output.done(text, as_json, id=id, cancelled=cancelled, status=word)
    if not cancelled:
        raise typer.Exit(1)


def send_again(
    directory: Directory,
    queue: Annotated[str, typer.Argument(help="The queue's name.", autocompletion=queue_names)],
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Send again the dead letters that were forgotten last in a queue, as new messages, as far as the log has them."""
    from remuda.bus import forgotten
    from remuda.cli import output

    with open_bus(directory) as bus:
        found = forgotten.send_again(bus.broker, queue, None, who or login_name())
    output.done(f"{found.words} to {queue}", as_json, queue=queue, sent=found.sent, gone=found.gone)


def command_of(verb: Verb) -> Callable[..., None]:
    """The command of a verb: its parameters are the verb's, a choice of messages is one option for each filter."""

    def command(**given: Any) -> None:
        _carry_out(verb, **given)

    parameters = [_parameter("directory", Directory), _parameter("queue", Queue)]
    parameters += [found for one in verb.parameters for found in _parameters_of(one, verb)]
    parameters += [_parameter("yes", Yes, False)] if verb.asks else []
    parameters += [_parameter("who", Who, None), _parameter("as_json", AsJson, False)]
    command.__name__, command.__doc__ = verb.name, verb.help
    command.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _parameters_of(one: Parameter, verb: Verb) -> Iterator[inspect.Parameter]:
    if one.type is MessageFilter:
        states = "".join(state for state in State if state in verb.states)
        for name, text in _CHOICE.items():
            yield _parameter(name, Annotated[str | None, typer.Option(help=text.format(states=states))], None)
    elif one.required:
        complete = queue_names if one.is_queue else None
        yield _parameter(one.name, Annotated[one.type, typer.Argument(help=one.help, autocompletion=complete)])
    else:
        kind = bool if one.type is bool else str | None
        yield _parameter(one.name, Annotated[kind, typer.Option(_option(one.name), help=one.help)], one.default)


def _carry_out(
    verb: Verb, directory: str, queue: str, who: str | None, as_json: bool, yes: bool = False, **given: Any
) -> None:
    from remuda.bus.verbs import carry_out, outcome_text, question, queues_like
    from remuda.cli import output

    values = _values(verb, given)
    with open_bus(directory) as bus:
        queues = queues_like(bus.broker, queue)
        asked = None if yes or not verb.asks else question(verb, map(bus.broker.queue, queues), bool(values))
        if asked is not None:
            output.confirm(asked, yes)
        count = carry_out(bus.broker, verb, queues, who or login_name(), values)
        text = outcome_text(bus.broker, verb, queues, values, count)
        status = bus.broker.queue(queues[0]).status
    named = {one.name: values[one.name] for one in verb.parameters if one.is_queue}
    result: dict[str, Any] = {verb.past: count} if verb.counts else {"status": status.value}
    if not verb.counts and status is not Status.RUNNING:
        from shlex import quote

        from remuda.cli.target import shown_target

        text += f"; to resume it: remuda resume {shown_target(directory)} {quote(queue)}"
    output.done(text, as_json, queue=queue, **named, **result)


def _values(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a verb's parameters, from those of the options."""
    values: dict[str, Any] = {}
    for one in verb.parameters:
        if one.type is MessageFilter:
            value: Any = _choice(verb, given)
        else:
            value = given[one.name]
            if one.type is int:
                value = _point(_option(one.name), value)
        if value is not None and value is not one.default:
            values[one.name] = value
    return values


def _choice(verb: Verb, given: Mapping[str, Any]) -> MessageFilter | None:
    if not any(given[name] for name in _CHOICE):
        return None
    since, until = (_point(_option(name), given[name]) for name in ("since", "until"))
    states = read_states(given["state"]) if given["state"] else verb.states
    return MessageFilter(states=states, reason=given["reason"], since=since or 0, until=until)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
