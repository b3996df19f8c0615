"""For tests of your own: a bus in memory with a clock that you move, and histories of workflows replayed.

`replay_histories` is for your CI: it calls the workflows of today with what was recorded of runs, doing nothing new,
and tells where the code goes another way than a run did that still lives.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from remuda.bus.testing import ManualClock, TestBus
from remuda.bus.workflows.errors import Diverged
from remuda.model.errors import NotFound

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

__all__ = ["Diverged", "ManualClock", "TestBus", "replay_histories"]


def replay_histories(bus: Bus, url: str | os.PathLike[str], *, workflow: str | None = None, ended: bool = True) -> int:
    """Replay the runs that are recorded in a directory, such as a backup, against the workflows of this bus, and return
    how many were replayed.

    Raises `Diverged` with every run that goes another way. Runs of workflows that this bus does not know are left out.
    Nothing is handled or recorded there; with `ended`, runs that are done are replayed as well.
    """
    replayed, diverged = 0, list[str]()
    testing = bus.testing(url)
    try:
        for run in bus.workflows.runs(workflow, limit=1 << 40, ended=ended):
            try:
                bus.workflows.replay(run.id)
            except NotFound:
                continue
            except Diverged as error:
                diverged.append(str(error))
            replayed += 1
    finally:
        testing.close()
    if diverged:
        raise Diverged(f"{len(diverged)} of {replayed} runs go another way than was recorded:\n" + "\n".join(diverged))
    return replayed
