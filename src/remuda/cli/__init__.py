"""The command line: `remuda run app:bus`, and commands to inspect and change a directory."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

_LONGEST = 2000


def main(arguments: Sequence[str] | None = None) -> None:
    """The `remuda` command. An error of Remuda or the operating system is one line on stderr, with exit code 1."""
    from remuda.model.errors import RemudaError

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed it, and wants no output
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process runs
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # A character that the terminal cannot show is printed as its code.
            stream.reconfigure(errors="backslashreplace")
    try:
        _command()(args=None if arguments is None else list(arguments), prog_name="remuda")
    except RemudaError as error:
        _fail(str(error))
    except OSError as error:
        named = f"{error.filename!r}: " if error.filename is not None else ""
        _fail(f"{named}{error.strerror or error}")
    except UnicodeEncodeError as error:
        _fail(f"{error.object!r} is not UTF-8; nothing was done")


@cache
def _command() -> Callable[..., Any]:
    """All commands; building them takes longer than running most of them."""
    from typer.main import get_command

    from remuda.cli.app import app

    return get_command(app)


def _fail(text: str) -> None:
    from remuda.cli.output import safe

    if len(text) > _LONGEST:  # the middle is some very long name, which the user typed
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    print(f"error: {safe(text, lines=True)}", file=sys.stderr)
    sys.exit(1)
