"""Follows a log into an index in small steps, or builds it anew, until it is killed or there is nothing more.

After each of the first `steps` it tells how far it came; after the last of these it waits, in the middle of its work,
to be killed.
"""

from __future__ import annotations

import sys

from remuda.index import Follower, LogSource, Reached, follower, open_index, rebuild
from remuda.log.disk import DirectoryDisk

if __name__ == "__main__":
    directory, place, task, steps = sys.argv[1:]
    follower.BATCH = follower.EVENTS = 40  # type: ignore[misc]
    log = LogSource(DirectoryDisk(directory, create=False))
    index = open_index(place)
    left = int(steps)

    def tell(reached: Reached) -> None:
        global left
        print(reached.offset, flush=True)
        left -= 1
        if left == 0:
            sys.stdin.read()  # which ends when whoever would kill us is gone

    if task == "rebuild":
        rebuild(index, log, progress=tell)
    else:
        Follower(index, log).catch_up(tell)
    print("done", flush=True)
