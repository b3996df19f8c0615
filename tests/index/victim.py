"""Follows a log into an index in small steps, until it is killed or told that there is nothing more."""

from __future__ import annotations

import sys

from remuda.index import Follower, LogSource, follower, open_index, rebuild
from remuda.log.disk import DirectoryDisk

if __name__ == "__main__":
    directory, place, task = sys.argv[1:]
    follower.BATCH = follower.EVENTS = 40  # type: ignore[misc]
    log = LogSource(DirectoryDisk(directory, create=False))
    index = open_index(place)
    print("ready", flush=True)
    if task == "rebuild":
        rebuild(index, log, progress=lambda reached: print(reached.offset, flush=True))
    else:
        Follower(index, log).catch_up(lambda reached: print(reached.offset, flush=True))
    print("done", flush=True)
