"""`remuda flow`: a queue's rules, what they hold back, and how they are changed while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from remuda.cli.commands.operations import AsJson, Directory, Queue, Who

if TYPE_CHECKING:
    from remuda.model.queues.flow_info import FlowInfo, KeyInfo

_COLUMNS: Final = ("key", "waiting", "running", "delayed", "held by", "since", "next")
_FLAGS: Final = {"true": True, "yes": True, "false": False, "no": False}


def flow(
    directory: Directory,
    queue: Queue,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Options to change, such as rate=100/s or ordered=true."),
    ] = None,
    keys: Annotated[int, typer.Option(help="How many keys to list, those with most waiting first.")] = 10,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """Show who goes when in a queue: its rules, and what they hold back. With NAME=VALUE, change options first."""
    from remuda.cli import output
    from remuda.cli.commands.operations import login_name, open_bus
    from remuda.model.queues.options import as_written

    changed = _read(changes or [])
    with open_bus(directory) as bus:
        bus.broker.queue(queue)  # a typing error creates no queue
        if changed:
            bus.broker.configure_queue(queue, who=who or login_name(), **changed)
        options = as_written(bus.broker.queue(queue).options)
        found = bus.broker.flow(queue, keys)
    rules = {name: options[name] for name in _RULES if options[name] != _USUAL[name]}
    if as_json:
        import msgspec

        output.json({"queue": queue, "rules": rules, **msgspec.to_builtins(found)})
        return
    print(", ".join(f"{name}={_text(value)}" for name, value in rules.items()) or f"{queue} has no rules of flow")
    print(_told(found))
    if found.top:
        output.table(_COLUMNS, (_row(key) for key in found.top), right=_COLUMNS[1:4])


def _read(changes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for change in changes:
        name, sign, text = change.partition("=")
        if not sign:
            raise typer.BadParameter(f"{change!r} is no NAME=VALUE, such as rate=100/s")
        value: Any = _FLAGS.get(text.lower(), int(text) if text.isdecimal() else text)
        values[name.replace("-", "_")] = "no" if name == "singleton" and value is False else value
    return values


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)


def _told(found: FlowInfo) -> str:
    keys = f"{found.keys} keys, {found.held} of them held"
    if not found.held_by:
        return keys
    return f"held by {found.held_by.value}{_next(found.until)}; {keys}"


def _row(key: KeyInfo) -> list[object]:
    return [
        "(none)" if key.key is None else key.key, key.waiting, key.in_flight, key.delayed, key.held_by.value,
        "" if key.since is None else _ago(key.since), _next(key.until).removeprefix(", "),
    ]  # fmt: skip


def _ago(time: int) -> str:
    from time import time_ns

    return f"{max(time_ns() // 1000 - time, 0) / 1e6:.1f} s"


def _next(until: int | None) -> str:
    from time import time_ns

    return "" if until is None else f", next in {max(until - time_ns() // 1000, 0) / 1e6:.1f} s"


def _defaults() -> dict[str, Any]:
    from remuda.model.queues.options import QueueOptions, as_written

    return as_written(QueueOptions())


_RULES: Final = (
    "flow_key", "ordered", "on_retry", "concurrency", "concurrency_per_key", "limits", "rate", "rate_per_key",
    "key_limits", "fair",
    "weights", "debounce", "max_wait", "throttle", "singleton",
)  # fmt: skip
_USUAL: Final = _defaults()
