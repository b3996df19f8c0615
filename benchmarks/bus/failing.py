"""What a failing message costs: from the fetch to the retry that is scheduled, beside one that succeeds.

    python -m benchmarks.bus.failing KIND DIRECTORY COUNT

prints the CPU time of the whole process for each message, in microseconds.
"""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal, get_args

from benchmarks.bus.work import BODY
from benchmarks.effort import Effort
from benchmarks.results import Result
from benchmarks.scratch import scratch
from remuda import Bus

FAILING: Final = "bus/failing"
UNIT: Final = "µs of CPU"
Kind = Literal["succeeding", "failing", "shown"]
"""Where a failure is shown, the log goes to a file. Every failure has a text of its own."""

_PER_SECOND: Final = 10_000
_ROOT: Final = Path(__file__).parent.parent.parent
_LIMIT: Final = 60.0
_FIRST: Final = 1000
_LOOK: Final = 0.005


def failing(effort: Effort) -> Result:
    count = max(int(effort.seconds * _PER_SECOND), 100)
    rounds: dict[Kind, list[float]] = {kind: [] for kind in get_args(Kind)}
    with scratch() as directory:
        for number in range(effort.rounds):
            for kind, costs in rounds.items():
                costs.append(_child(kind, directory / f"{kind}-{number}", count))
    medians = {kind: round(statistics.median(found), 1) for kind, found in rounds.items()}
    return Result(
        name=FAILING,
        unit=UNIT,
        remuda=medians["shown"],
        settings={
            "remuda": "one thread; sync=os; every message fails with a text of its own, and the log goes to a file",
            "µs_without_log": medians["failing"],
            "µs_of_success": medians["succeeding"],
            "messages_per_round": count,
            "rounds": rounds,
            "bound_by": "Python's work per message",
        },
    )


def cost(kind: Kind, directory: Path, count: int) -> float:
    """On a running bus, with the publish of all messages at once, which is next to nothing for each."""
    directory.mkdir(parents=True)
    logger = logging.getLogger("remuda")
    if kind == "shown":
        handler = logging.FileHandler(directory / "log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    else:
        logger.setLevel(logging.CRITICAL)
    bus = Bus(directory / "bus", sync="os")

    @bus.subscribe("bench.row", queue="bench", threads=1)
    def handle(body: str) -> None:
        if kind != "succeeding":
            raise ValueError(f"number {body[:9]}")

    with bus:
        bus.start()
        _handle(bus, 0, _FIRST)
        start = time.process_time()
        _handle(bus, _FIRST, count)
        spent = time.process_time() - start
        delayed = bus.broker.queue("bench").delayed
        assert delayed == (0 if kind == "succeeding" else _FIRST + count)
        bus.stop()
    return 1e6 * spent / count


def _handle(bus: Bus, first: int, count: int) -> None:
    """Publish messages, and wait until each is settled."""
    bus.publish_many("bench.row", [f"{number:09d}{BODY}" for number in range(first, first + count)])
    deadline = time.monotonic() + _LIMIT
    while (info := bus.broker.queue("bench")).waiting or info.in_flight:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{info.waiting + info.in_flight} of {count} messages wait after {_LIMIT:g} s")
        time.sleep(_LOOK)


def _child(kind: Kind, directory: Path, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.bus.failing", kind, str(directory), str(count)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=2 * _LIMIT)
    if done.returncode:
        raise RuntimeError(f"{kind} ended with {done.returncode}:\n{done.stderr}")
    return float(done.stdout)


if __name__ == "__main__":
    asked = next(kind for kind in get_args(Kind) if kind == sys.argv[1])
    sys.stdout.write(f"{cost(asked, Path(sys.argv[2]), int(sys.argv[3])):.1f}\n")
