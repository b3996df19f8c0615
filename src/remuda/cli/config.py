"""`remuda config`: the effective settings, and where each came from."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def config(
    app: Annotated[str | None, typer.Argument(metavar="[APP]", help="module:variable; also shows its queues.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective settings, from code, remuda.toml and the environment."""
    from remuda.bus.settings.settings import Settings
    from remuda.cli import output
    from remuda.cli.target import load_bus

    if app is None:
        rows = Settings.load().effective({})
    else:
        bus = load_bus(app)
        bus.queue_settings()
        options = {handler.queue.removeprefix(bus.prefix): handler.options for handler in bus.handlers}
        rows = bus.settings.effective(options)
    if as_json:
        output.json([{"setting": name, "value": _plain(name, value), "source": source} for name, value, source in rows])
        return
    output.table(["setting", "value", "from"], ((name, _shown(name, value), source) for name, value, source in rows))


def _shown(name: str, value: Any) -> str:
    plain = _plain(name, value)
    if plain is None:
        return "none"
    return ", ".join(plain) if isinstance(plain, list) else str(plain)


def _plain(name: str, value: Any) -> Any:
    """A value as you would write it."""
    from remuda.bus.settings.retry import RetryPolicy
    from remuda.model.durations import text

    if isinstance(value, RetryPolicy):
        waits = [text(max(wait, value.min_interval)) for wait in value.intervals[: value.max_retries]]
        if value.max_retries > len(waits) and waits:
            waits.append(f"… {value.max_retries} in all")
        return waits
    if isinstance(value, tuple):
        return [text(interval) for interval in value]
    if isinstance(value, int) and name.startswith(("message.retry.min", "message.retry.check", "message.timeout")):
        return text(value)
    return value
