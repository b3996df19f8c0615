"""`remuda config`: the effective settings, and where each came from."""

from __future__ import annotations

from typing import Annotated

import typer


def config(
    app: Annotated[str | None, typer.Argument(metavar="[APP]", help="module:variable; also shows its queues.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective settings, from code, remuda.toml and the environment."""
    from remuda.bus.settings.in_words import as_written, in_words
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
        told = [(name, as_written(name, value), source) for name, value, source in rows]
        output.json([{"setting": name, "value": value, "source": source} for name, value, source in told])
        return
    output.table(["setting", "value", "from"], ((name, in_words(name, value), source) for name, value, source in rows))
