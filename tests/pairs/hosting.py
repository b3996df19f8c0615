"""Hosts of directories: `open DIRECTORY` forks a process that hosts it and prints its id, `kill ID` kills that process.

All of them end when standard input does.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from remuda import open_broker


def host(directory: str, ready: int) -> None:
    parent = os.getppid()
    broker = open_broker(directory, sync="os")
    broker.queues()  # it is open
    os.write(ready, b".")
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(0)


def main() -> None:
    for line in sys.stdin:
        verb, _, what = line.strip().partition(" ")
        if verb == "open":
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                host(what, writing)
            os.close(writing)
            os.read(reading, 1)
            os.close(reading)
            print(child, flush=True)
        else:
            os.kill(int(what), signal.SIGKILL)
            os.waitpid(int(what), 0)
            print("killed", flush=True)


if __name__ == "__main__":
    main()
