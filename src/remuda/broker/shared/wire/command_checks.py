"""Checks commands from another machine as the API does: the sender may be any program with a password."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from remuda.broker import checks
from remuda.model.errors import InvalidOption
from remuda.model.operations.commands import ON_THE_WIRE, Publish, Pull, SetCredit, Settle, Subscribe
from remuda.model.operations.filters import message_filter, read_runs
from remuda.model.operations.verbs import BUILDERS, rebuilt
from remuda.model.operations.worker_orders import check_worker
from remuda.model.queues.options import QueueOptions
from remuda.model.values.texts import read_count, read_name, read_optional_text, read_text

_NAMES: Final = ("queue", "unbound", "exchange", "consumer", "to", "group")
_HIGHEST: Final = 1 << 62


def checked_query(query: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a query; raises an error that names what is wrong with them."""
    if query == "parked":
        queue, chosen, limit = values
        return read_name("queue", queue), message_filter(chosen), read_count("limit", limit, 0)
    if query == "tell_worker":
        check_worker(values[0])
    if query == "cancel_running":
        queue, offset, who = values
        return read_name("queue", queue), read_count("offset", offset), read_text("who", who) if who else ""
    if query == "flow":
        return read_name("queue", values[0]), read_count("limit", values[1], 0)
    if query == "notes":
        return read_name("queue", values[0]), read_count("offset", values[1]), read_count("after", values[2])
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
            command = msgspec.structs.replace(command, messages=command.messages.checked())
            return command if command.note is None else checks.published_with(command, command.note)
        case Subscribe():
            read_count("batch", command.batch, 1)
            read_count("credit", command.credit, 1)
        case SetCredit():
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
            runs = None if command.runs is None else list(read_runs(command.runs))
            return msgspec.structs.replace(command, settlement=answer, runs=runs)
        case _ if type(command) in BUILDERS and not hasattr(command, "options"):
            return rebuilt(command)
        case _ if type(command) not in ON_THE_WIRE:
            raise InvalidOption(f"{type(command).__name__} is no command for the wire; nothing was changed")
    return command
