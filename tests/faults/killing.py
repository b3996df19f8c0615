"""Starting a process, hearing what it says, and killing it in the middle of its work."""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext

from tests.faults.victim import Job, run
from tests.faults.witness import Witness

PATIENCE = 120.0
"""For a machine that is busy with other things; the victim shows where it stands before that is over."""


def fork_server() -> ForkServerContext:
    """Processes that start in a moment, since their modules are loaded already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "tests.faults.victim"])
    return context


def kill_in_a_while(processes: ForkServerContext, job: Job, witness: Witness, rest: Callable[[], float]) -> None:
    """Start the victim, hear it until it says `!` for the last time and `rest()` seconds longer, and kill it."""
    ears, mouth = processes.Pipe(duplex=False)
    process = processes.Process(target=run, args=(job, mouth), daemon=True)
    process.start()
    mouth.close()
    marks = 1 if job.then == "go on" else 2
    heard = b""
    deadline = None
    while deadline is None or time.monotonic() < deadline:
        wait = PATIENCE if deadline is None else max(deadline - time.monotonic(), 0)
        if not select.select([ears], [], [], wait)[0]:
            assert deadline is not None, f"the victim said nothing for {PATIENCE:.0f} seconds"
            break
        said = os.read(ears.fileno(), 1 << 16)
        assert said, f"the victim ended by itself: {heard[-300:]!r}"
        heard += said
        if deadline is None and heard.count(b"!\n") >= marks:
            deadline = time.monotonic() + rest()
    process.kill()
    while said := os.read(ears.fileno(), 1 << 16):
        heard += said
    process.join()
    ears.close()
    witness.hear(heard)
