"""`remuda takeover`: end a host that does not answer, so that another process can take over."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer


def takeover(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="End the process even if it answers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """End the process that hosts a directory, if it is frozen. Another process takes over at once.

    Nothing confirmed is lost: the operating system releases the lock only when the process is really gone."""
    from remuda.broker.shared.directory.host_status import answers, holder_of, wait_for_change
    from remuda.cli import output
    from remuda.cli.target import directory_of
    from remuda.model.errors import RemudaError

    path = directory_of(directory)
    pid = holder_of(path)
    if pid is None:
        text = f"no process has {path} open; nothing was done. The next process that opens it will be the host"
        output.done(text, as_json, directory=str(path), ended=None, holder=None)
        return
    if pid == 0:
        raise RemudaError(f"{path} is open in a process that cannot be seen from here; end it where it runs")
    if not force and answers(path):
        raise RemudaError(f"process {pid} has {path} open and answers; nothing was done. --force ends it anyway")
    output.confirm(f"End process {pid}, which has {path} open and does not answer?", yes)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise RemudaError(f"process {pid} belongs to another user; run this as that user, or as root") from None
    now = wait_for_change(path, pid)
    if now is None:
        text = f"process {pid} has ended; the next process that opens {path} will be the host"
    else:
        text = f"process {pid} has ended; process {now} is now the host of {path}"
    output.done(text, as_json, directory=str(path), ended=pid, holder=now)
