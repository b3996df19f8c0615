"""The command line: `remuda run app:bus`, and everything one wants to know about a directory or do to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """The `remuda` command. Remuda's own errors are one line on stderr and exit code 1."""
    from remuda.cli.app import app
    from remuda.model.errors import RemudaError

    try:
        app(args=None if arguments is None else list(arguments), prog_name="remuda")
    except RemudaError as error:
        from remuda.cli.output import safe

        print(f"error: {safe(str(error), lines=True)}", file=sys.stderr)
        sys.exit(1)
