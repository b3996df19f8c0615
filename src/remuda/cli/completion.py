"""Shell completion."""

from __future__ import annotations

import typer


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The queues of the directory typed so far; none if it cannot be read."""
    from remuda.cli.target import directory_of
    from remuda.cli.viewing.directory_view import DirectoryView
    from remuda.model.errors import RemudaError

    target = ctx.params.get("directory")
    if not isinstance(target, str):
        return []
    try:
        return [info.name for info in DirectoryView(directory_of(target)).queues() if info.name.startswith(incomplete)]
    except (RemudaError, OSError):
        return []
