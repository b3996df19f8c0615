"""Carries a log into an index in small steps, until it is killed or there is nothing more.

Started once, it has imported what is slow to import, and forks a victim for each line `directory place task steps`.
After each of the first `steps` the victim tells how far it came; after the last of these it waits, in the middle of its
work, to be killed. When it is gone, `ended` is told.
"""

from __future__ import annotations

import os
import signal
import sys

import pyarrow as pa

from remuda.index import Follower, LogSource, Reached, follower, open_index, rebuild
from remuda.log.disk import DirectoryDisk


def carry(directory: str, place: str, task: str, steps: int) -> None:
    follower.BATCH = follower.EVENTS = 40  # type: ignore[misc]
    log = LogSource(DirectoryDisk(directory, create=False))
    index = open_index(place)
    left = steps

    def tell(reached: Reached) -> None:
        nonlocal left
        print(reached.offset, flush=True)
        left -= 1
        if left == 0:
            signal.pause()

    if task == "rebuild":
        rebuild(index, log, progress=tell)
    else:
        Follower(index, log).catch_up(tell)
    print("done", flush=True)


def main() -> None:
    pa.array([1])  # which imports more
    for line in sys.stdin:
        directory, place, task, steps = line.split()
        victim = os.fork()
        if victim == 0:
            signal.alarm(120)  # it does not outlive whoever would kill it
            code = 1
            try:
                carry(directory, place, task, int(steps))
                code = 0
            finally:
                os._exit(code)
        print(victim, flush=True)
        os.waitpid(victim, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
