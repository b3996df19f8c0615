"""A worker process that gets killed: `python -m tests.faults.bus_victim <directory> <notes> <executor> <mode>`.

Each call is noted before it does anything. In mode `hang`, the message `poison` never ends on its first attempt.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from remuda import Attempt, Bus


def note(path: str, text: str) -> None:
    """One small write, so that a line is there whole or not at all."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\n".encode())
    os.close(file)


def handle(job: dict[str, str], attempt: Attempt) -> None:
    note(job["notes"], f"{job['name']} {attempt} {os.getpid()}")
    if job["name"] == "poison" and attempt == 1:
        time.sleep(60)


async def handle_async(job: dict[str, str], attempt: Attempt) -> None:
    note(job["notes"], f"{job['name']} {attempt} {os.getpid()}")
    if job["name"] == "poison" and attempt == 1:
        await asyncio.sleep(60)


def app(directory: str, executor: str) -> Bus:
    bus = Bus(directory)
    handler: Any = handle_async if executor == "asyncio" else handle
    bus.subscribe("job", queue="jobs", executor=executor, retry=["10ms"] * 3)(handler)
    bus.subscribe("other", queue="others", retry=["10ms"] * 3)(handle)
    return bus


def main(directory: str, notes: str, executor: str, mode: str) -> None:
    bus = app(directory, executor)
    if mode == "hang":
        names = [f"job-{number}" for number in range(40)]
        names[20] = "poison"
        bus.publish_many("job", [{"notes": notes, "name": name} for name in names])
        bus.publish_many("other", [{"notes": notes, "name": f"other-{number}"} for number in range(40)])
        bus.run()
    else:
        bus.run(until_idle=True)
        bus.close()
        note(notes, "done 0 0")


if __name__ == "__main__":
    main(*sys.argv[1:])
