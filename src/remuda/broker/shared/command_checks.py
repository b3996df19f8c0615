"""Checks commands from another machine as the API does: the sender may be any program with a password."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from remuda.broker import checks
from remuda.model.commands import (
    Bind,
    Clear,
    DeclareExchange,
    Forget,
    Move,
    Publish,
    Pull,
    Reprocess,
    Settle,
    Subscribe,
    Unbind,
)
from remuda.model.options import QueueOptions
from remuda.model.texts import read_count, read_name, read_optional_text

_NAMES: Final = ("queue", "unbound", "exchange", "consumer", "to", "group")
_HIGHEST: Final = 1 << 62


def checked_query(query: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a query; raises an error that names what is wrong with them."""
    if query == "parked":
        queue, chosen, limit = values
        return read_name("queue", queue), checks.message_filter(chosen), read_count("limit", limit, 0)
    return values


def checked(command: Any) -> Any:
    """The command with its values converted; raises an error that names what is wrong with them."""
    for name in _NAMES:
        value = getattr(command, name, None)
        if value is not None:
            read_name(name, value)
    options = getattr(command, "options", None)
    if options:
        QueueOptions().with_values(options)
        for name, value in options.items():
            if type(value) is int and not 0 <= value < _HIGHEST:
                read_count(name, value, 0)
            if isinstance(value, tuple):
                for topic in value:
                    read_name(f"each of {name}", topic)
    read_optional_text("who", getattr(command, "who", None))
    match command:
        case Publish():
            # The producer is set from the session, and `spooled` is not on the wire.
            return msgspec.structs.replace(command, messages=command.messages.checked())
        case Subscribe():
            read_count("batch", command.batch, 1)
            read_count("credit", command.credit, 1)
        case Pull():
            return msgspec.structs.replace(
                checks.pull(
                    command.tag, command.queue, command.consumer, command.count, command.newest, command.clear_after, 0
                ),
                wait=read_count("timeout", command.wait, 0),
            )
        case Settle():
            answer = checks.checked_settlement(command.settlement, command.settlement.consumer or "")
            runs = None if command.runs is None else list(checks.read_runs(command.runs))
            return msgspec.structs.replace(command, settlement=answer, runs=runs)
        case Clear():
            return checks.clear(command.queue, command.lanes, command.offsets, command.reason, command.who)
        case Reprocess() | Forget() | Move():
            return msgspec.structs.replace(command, filter=checks.message_filter(command.filter))
        case DeclareExchange():
            checks.declare_exchange(command.exchange, command.kind, command.bindings)
        case Bind() | Unbind():
            checks.binding(command.exchange, command.binding)
    return command
