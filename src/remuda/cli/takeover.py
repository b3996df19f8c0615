"""`remuda takeover`: end a process that has a directory and does not answer, so that another can go on."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer


def takeover(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also if the process answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """End the process that has a directory, if it is frozen. Another one that uses it takes over at once.

    Nothing that was confirmed is lost: the lock is the system's, and falls when the process is really gone."""
    from remuda.broker.shared.inspect import answers, holder_of, wait_for_change
    from remuda.cli import output
    from remuda.cli.target import directory_of
    from remuda.model.errors import RemudaError

    path = directory_of(directory)
    pid = holder_of(path)
    if pid is None:
        text = f"no process has {path}; nothing was done. Whoever opens it next has it"
        output.done(text, as_json, directory=str(path), ended=None, holder=None)
        return
    if pid == 0:
        raise RemudaError(f"{path} is open in a process that cannot be seen from here; end it where it runs")
    if not force and answers(path):
        raise RemudaError(f"process {pid} has {path} and answers; nothing was done. --force ends it all the same")
    output.confirm(f"End process {pid}, which has {path} and does not answer?", yes)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise RemudaError(f"process {pid} belongs to another user; run this as that user, or as root") from None
    now = wait_for_change(path, pid)
    if now is None:
        text = f"process {pid} has ended; whoever opens {path} next has it"
    else:
        text = f"process {pid} has ended, and process {now} has {path} now"
    output.done(text, as_json, directory=str(path), ended=pid, holder=now)
