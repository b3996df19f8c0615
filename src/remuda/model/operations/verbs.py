"""What people may do with queues and their messages, each verb declared once.

A verb is a function that checks its arguments and makes a command of them. Its signature is that of the method of every
broker, for threads and for coroutines; its command says what it returns and who may send it. Those with `done` are also
commands of the command line and operations of the HTTP API, with the same parameters and the same help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, ParamSpec, TypeVar, Unpack, get_args, get_origin, get_type_hints

import msgspec

from remuda.model.errors import Conflict, InvalidOption
from remuda.model.life import PARKED, WAITING
from remuda.model.operations.commands import (
    Bind,
    Clear,
    ConfigureQueue,
    DeclareExchange,
    DeclareQueue,
    Forget,
    Move,
    PauseKey,
    RemoveExchange,
    RemoveQueue,
    Reprocess,
    RequeueFront,
    Returns,
    SetStatus,
    Unbind,
)
from remuda.model.operations.filters import FAILED, MessageFilter, message_filter, read_runs
from remuda.model.queues.options import Options, QueueKwargs, Status, read_options
from remuda.model.queues.routing import Binding, ExchangeKind, read_binding
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.model.state import State
from remuda.model.values.durations import text
from remuda.model.values.option_reading import read_duration, read_enum
from remuda.model.values.texts import read_flag, read_name, read_optional_text, read_text, shown

P = ParamSpec("P")
C = TypeVar("C", bound=Returns[Any])

LANES: Final = ("all", "priority", "regular")


class Help(msgspec.Struct, frozen=True):
    """What a parameter means, for the command line and the API's description."""

    text: str
    is_queue: bool = False
    """Whether it names a queue that exists."""


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a verb, besides the queue and who asks."""

    name: str
    type: Any
    """A type that JSON has, or `MessageFilter` for a choice of messages."""
    help: str
    required: bool = False
    default: Any = None
    is_queue: bool = False


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """A verb as people meet it: on the page, at the command line and in the HTTP API."""

    name: str
    help: str
    parameters: tuple[Parameter, ...]
    done: str
    """What was done, with the verb's arguments in braces; `{messages}` is how many with their noun."""
    past: str
    """What became of the messages, in one word; empty if the verb takes none."""
    states: frozenset[State] = PARKED
    """The states of the messages that it takes if the choice names none."""
    asks: str = ""
    """The question before it is done, for what cannot be undone at once."""

    @property
    def counts(self) -> bool:
        """Whether the result is a number of messages."""
        return bool(self.past)


VERBS: Final[dict[str, Verb]] = {}
"""The verbs with a face, by name."""
BUILDERS: Final[dict[type, Callable[..., Any]]] = {}
"""What checks and builds each command: its parameters are the fields of the command, in their order."""


def _declared(build: Callable[P, C]) -> Callable[P, C]:
    """Declare what builds a command. The first for a command also checks those that come over the wire."""
    command = get_type_hints(build)["return"]
    BUILDERS.setdefault(command, build)
    return build


def _verb(
    done: str,
    past: str = "",
    *,
    states: frozenset[State] = PARKED,
    asks: str = "",
    parameters: tuple[Parameter, ...] | None = None,
) -> Callable[[Callable[P, C]], Callable[P, C]]:
    """Declare a verb that people use, by the function that builds its command."""

    def declare(build: Callable[P, C]) -> Callable[P, C]:
        name = build.__name__
        hints = get_type_hints(build, include_extras=True)
        found = parameters if parameters is not None else tuple(_parameters(build, hints))
        VERBS[name] = Verb(
            name=name, help=inspect.cleandoc(build.__doc__ or ""), parameters=found, done=done,
            past=past, states=states, asks=asks,
        )  # fmt: skip
        return _declared(build)

    return declare


def _parameters(build: Callable[..., Any], hints: Mapping[str, Any]) -> Iterable[Parameter]:
    for name, given in inspect.signature(build).parameters.items():
        if name in ("name", "who"):
            continue
        hint, about = hints[name], Help("")
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
            about = next((extra for extra in extras if isinstance(extra, Help)), about)
        required = given.default is inspect.Parameter.empty
        kind = next((one for one in get_args(hint) if one is MessageFilter), hint)
        yield Parameter(name, kind, about.text, required, None if required else given.default, about.is_queue)


# Administering


@_declared
def create_queue(name: str, options: Options = None, /, **more: Unpack[QueueKwargs]) -> DeclareQueue:
    """Create a queue. One that exists keeps its options; the result says how they differ."""
    named = read_options(options)
    return DeclareQueue(read_name("queue", name), {**(named or {}), **(read_options(more) or {})} if more else named)


@_declared
def configure_queue(name: str, *, who: str | None = None, **changes: Unpack[QueueKwargs]) -> ConfigureQueue:
    """Change options of a live queue; its type stays."""
    return ConfigureQueue(read_name("queue", name), read_options(changes) or {}, read_optional_text("who", who))


@_declared
def set_status(name: str, status: Status | str, *, who: str | None = None) -> SetStatus:
    """Say what a queue does: `running`, `only-publish`, `only-consume` or `paused`."""
    queue, wanted = read_name("queue", name), read_enum("status", status, Status)
    if queue in SYSTEM_QUEUES and wanted in (Status.PAUSED, Status.ONLY_CONSUME):
        raise Conflict(
            f"{name} belongs to the bus itself and must take messages, or handlers could not be settled; nothing was "
            "changed. Set it to only-publish to keep what is in it, or pause the queues of your handlers"
        )
    return SetStatus(queue, wanted, read_optional_text("who", who))


@_verb("{queue} {status}")
def pause(
    name: str,
    *,
    refuse: Annotated[bool, Help("Also refuse publishers.")] = False,
    only_publishers: Annotated[bool, Help("Refuse publishers, but keep delivering.")] = False,
    who: str | None = None,
) -> SetStatus:
    """Stop delivering a queue's messages until it is resumed. It still accepts messages, unless `refuse` is given."""
    if read_flag("refuse", refuse) and read_flag("only_publishers", only_publishers):
        raise InvalidOption("give refuse or only_publishers, not both; nothing was changed")
    status = Status.PAUSED if refuse else Status.ONLY_CONSUME if only_publishers else Status.ONLY_PUBLISH
    return set_status(name, status, who=who)


@_verb("{queue} {status}")
def resume(name: str, *, who: str | None = None) -> SetStatus:
    """Let a paused queue go on."""
    return set_status(name, Status.RUNNING, who=who)


@_declared
def remove_queue(name: str, *, who: str | None = None) -> RemoveQueue:
    """Remove a queue; the messages in it end."""
    return RemoveQueue(read_name("queue", name), read_optional_text("who", who))


@_declared
def create_router(name: str, kind: ExchangeKind | str, bindings: Iterable[Binding] = ()) -> DeclareExchange:
    """Create a router with its bindings, or replace the one of the same name."""
    if isinstance(bindings, str | bytes | Mapping | Binding) or not isinstance(bindings, Iterable):
        raise InvalidOption(f"bindings must be a list of Bindings, not {shown(bindings)}")
    targets = tuple(read_binding(name, one) for one in bindings)
    return DeclareExchange(read_name("router", name), read_enum("kind", kind, ExchangeKind), targets)


@_declared
def remove_router(name: str) -> RemoveExchange:
    return RemoveExchange(read_name("router", name))


@_declared
def bind(router: str, binding: Binding) -> Bind:
    return Bind(read_name("router", router), read_binding(router, binding))


@_declared
def unbind(router: str, binding: Binding) -> Unbind:
    return Unbind(read_name("router", router), read_binding(router, binding))


# Operating


@_verb("{messages} back in {queue}", "reprocessed", states=FAILED)
def reprocess(name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> Reprocess:
    """Send failed messages back to their queue, with a fresh count of attempts: dead letters (dead, invalid and not
    interested), and messages that wait for a retry, unless the states given leave these out."""
    wanted = message_filter(chosen, FAILED)
    return Reprocess(read_name("queue", name), wanted, read_optional_text("who", who))


@_verb("{messages} at the front of {queue}", "requeued", states=FAILED)
def requeue_front(name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> RequeueFront:
    """Send failed messages back to the front of their queue, before all that waits with the same priority; otherwise as
    `reprocess`."""
    again = reprocess(name, chosen, who=who)
    return RequeueFront(again.queue, again.filter, again.who)


@_verb("{dead_letters} of {queue} forgotten", "forgotten", asks="Forget {dead_letters} of {queue} for good?")
def forget(name: str, chosen: MessageFilter | None = None, *, who: str | None = None) -> Forget:
    """Delete dead letters (dead, invalid and not interested) for good. They can no longer be reprocessed."""
    return Forget(read_name("queue", name), message_filter(chosen), read_optional_text("who", who))


@_verb(
    "{messages} cleared from {queue}",
    "cleared",
    asks="Clear {waiting_messages} from {queue}?",
    states=WAITING,
    parameters=(
        Parameter("topic", str, "Only messages with this topic."),
        Parameter("reason", str, "Only messages whose last failure contains this text."),
        Parameter("since", int, "Only messages published at or after this time."),
        Parameter("until", int, "Only messages published before this time."),
    ),
)
def clear(
    name: str,
    lanes: str = "all",
    *,
    offsets: Iterable[tuple[int, int]] | None = None,
    who: str | None = None,
    reason: str | None = None,
) -> Clear:
    """End all waiting messages of a queue, delayed ones included, or those that match. They become dead letters and can
    be reprocessed."""
    runs = None if offsets is None else read_runs(offsets)
    why = "cleared" if reason is None else read_text("reason", reason)
    if not isinstance(lanes, str) or lanes not in LANES:
        raise InvalidOption(f"lanes must be one of {', '.join(LANES)}; not {shown(lanes)}")
    return Clear(read_name("queue", name), lanes, runs, read_optional_text("who", who), why)


@_verb("{messages} moved from {queue} to {to}", "moved", states=FAILED)
def move(
    name: str,
    to: Annotated[str, Help("The queue that receives them.", is_queue=True)],
    chosen: MessageFilter | None = None,
    *,
    who: str | None = None,
) -> Move:
    """Move waiting messages to another queue, or those chosen. They keep their id, headers, history, attempts and due
    time; dead letters start again. Those that the other queue does not take stay where they are."""
    source, target = read_name("queue", name), read_name("to", to)
    if source == target:
        raise InvalidOption(f"messages of {shown(name)} cannot be moved to their own queue; nothing was moved")
    wanted = message_filter(chosen, WAITING if chosen is None else FAILED)
    for state in wanted.taken - WAITING - PARKED:
        raise InvalidOption(
            f"messages that wait or that failed can be moved (states Q, R, E, I, N), not those in state {state.name} "
            f"({state.value}); nothing was moved"
        )
    if State.QUEUED in wanted.taken and (wanted.reason is not None or wanted.since or wanted.until is not None):
        raise InvalidOption(
            "reason, since and until choose among messages that failed; choose waiting ones (state Q) by offsets. "
            "Nothing was moved"
        )
    return Move(source, target, wanted, read_optional_text("who", who))


@_verb("key {key} of {queue} is held")
def pause_key(
    name: str,
    key: Annotated[str, Help("The key, as messages have it.")],
    duration: Annotated[str, Help("For how long, such as 10m; until it is resumed if left out.")] = "",
    *,
    who: str | None = None,
) -> PauseKey:
    """Hold back the messages of one key; other keys go on. What is being handled is not interrupted."""
    span = text(read_duration("duration", duration)) if duration != "" else ""
    return PauseKey(read_name("queue", name), read_text("key", key), span, read_optional_text("who", who))


@_verb("key {key} of {queue} goes on")
def resume_key(
    name: str, key: Annotated[str, Help("The key, as messages have it.")], *, who: str | None = None
) -> PauseKey:
    """Let a key that was paused go on."""
    return pause_key(name, key, "0s", who=who)


def rebuilt(command: Any) -> Any:
    """A command that came over the wire, checked as if it were made here."""
    build = BUILDERS[type(command)]
    values = msgspec.structs.astuple(command)
    arguments: dict[str, Any] = {}
    positional: list[Any] = []
    for parameter, value in zip(inspect.signature(build).parameters.values(), values, strict=False):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            arguments[parameter.name] = value
        else:
            positional.append(value)
    return build(*positional, **arguments)
