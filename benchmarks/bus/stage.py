"""One side in a process of its own: starts its workers, then publishes as it is told and says how long it took.

    python -m benchmarks.bus.stage SIDE EXECUTOR SYNC DIRECTORY

Requests come as lines of JSON, and so do the answers. Whoever started it ends it, by a signal.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from benchmarks.bus import work
from benchmarks.bus.side import Running, Setup, Unfit

CLASSES: Final = {"remuda": "RemudaSide", "huey": "HueySide", "dramatiq": "DramatiqSide", "celery": "CelerySide"}
BATCH: Final = 1000
PATIENCE: Final = 15.0
"""How long, in seconds, all messages of a request may take after the last was published."""


class Request(msgspec.Struct, frozen=True):
    """Publish so many messages: all at once, or each after the one before was handled."""

    count: int
    batch: bool = False
    each: bool = False


class Answer(msgspec.Struct, frozen=True):
    """Seconds: of all messages together, or of each."""

    seconds: list[float] = []
    description: str = ""
    refused: str | None = None


def play(running: Running, request: Request) -> list[float]:
    if request.each:
        return list(_one_by_one(running, request.count))
    return [_together(running, request)]


def _together(running: Running, request: Request) -> float:
    """From the first publish to the last handled."""
    work.tally.expect(request.count)
    start = time.perf_counter()
    if request.batch:
        for first in range(0, request.count, BATCH):
            running.publish_many([work.BODY] * min(BATCH, request.count - first))
    else:
        for _ in range(request.count):
            running.publish(work.BODY)
    return work.tally.wait(PATIENCE) - start


def _one_by_one(running: Running, count: int) -> Iterator[float]:
    """From each publish to the start of its handler, with pauses that no polling can fall in step with."""
    pauses = random.Random(count)
    for _ in range(count):
        time.sleep(pauses.uniform(0.001, 0.005))
        work.tally.expect(1)
        start = time.perf_counter()
        running.publish(work.BODY)
        yield work.tally.wait(PATIENCE) - start


def main(requests: BinaryIO, answers: BinaryIO, name: str, executor: Any, sync: Any, directory: str) -> None:
    def answer(value: Answer) -> None:
        answers.write(msgspec.json.encode(value) + b"\n")
        answers.flush()

    try:
        side = getattr(importlib.import_module(f"benchmarks.bus.{name}_side"), CLASSES[name])
        running: Running = side(Setup(executor, sync, Path(directory)))
        answer(Answer(description=running.description))
        for line in requests:
            answer(Answer(play(running, msgspec.json.decode(line, type=Request))))
    except Unfit as reason:
        answer(Answer(refused=str(reason)))
    except Exception as error:
        answer(Answer(refused=f"{type(error).__name__}: {error}"))
        raise


if __name__ == "__main__":
    # Answers go where nothing that a library prints can come between them.
    own = os.dup(1)
    os.dup2(2, 1)
    main(sys.stdin.buffer, os.fdopen(own, "wb"), *sys.argv[1:])
