"""How far an index is behind its log while messages come steadily: `python -m benchmarks.index.lag DIR` follows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.processes import cpu_seconds
from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.index import Follower, LogSource, open_index
from remuda.log.disk import DirectoryDisk
from remuda.model.messages import Messages

PER_SECOND: Final = 10_000
_BATCH: Final = 100
_LOOK: Final = 0.02
_PATIENCE: Final = 60.0
_QUEUE: Final = "orders"
_ROOT: Final = Path(__file__).parents[2]


class Lag(NamedTuple):
    """How long ago the first message that is not in the index was published, at every look; what following costs."""

    looks: list[float]
    cpu_us_per_message: float


def behind(directory: Path, seconds: float) -> Lag:
    """Publish and handle for so long, beside a process that follows and has taken a first batch in."""
    with open_broker(directory, sync="os") as broker:
        broker.create_queue(_QUEUE, type="pull")
        command = [sys.executable, "-m", "benchmarks.index.lag", str(directory)]
        with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follower:
            try:
                assert follower.stdout is not None
                follower.stdout.readline()
                return _watch(broker, directory, seconds, follower.pid)
            finally:
                follower.terminate()


def _watch(broker: Broker, directory: Path, seconds: float, follower: int) -> Lag:
    index = open_index(directory / "index")

    def reached() -> int:
        found = index.reached()
        return 0 if found is None else found.offset // _BATCH

    published: list[float] = []
    """When each batch was."""
    looks: list[float] = []
    try:
        _publish(broker, 0)  # with the first, what reads them is imported
        _until(lambda: reached() > 0)
        before, spent = reached(), cpu_seconds(follower)
        began = look_at = time.monotonic()
        while (now := time.monotonic()) - began < seconds:
            while len(published) * _BATCH < (now - began) * PER_SECOND:
                published.append(time.monotonic())
                _publish(broker, len(published))
            if now >= look_at:
                at = reached() - before
                looks.append(time.monotonic() - published[at] if at < len(published) else 0.0)
                look_at = now + _LOOK
            time.sleep(0.002)
        taken = max((reached() - before) * _BATCH, 1)
        return Lag(looks, (cpu_seconds(follower) - spent) / taken * 1e6)
    finally:
        index.close()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the follower took nothing in within {_PATIENCE:g} s")
        time.sleep(_LOOK)


def _publish(broker: Broker, number: int) -> None:
    bodies = [f'{{"number":{number},"text":"order {number} of customer C{row}"}}'.encode() for row in range(_BATCH)]
    broker.publish(Messages(bodies=bodies, name="orders.placed", mime_type="application/json"), queue=_QUEUE)
    delivery = broker.pull(_QUEUE, _BATCH)
    if delivery is not None:
        delivery.ack()


def main(directory: str) -> None:
    index = open_index(Path(directory) / "index")
    follower = Follower(index, LogSource(DirectoryDisk(Path(directory), create=False)))
    follower.catch_up()
    threading.Thread(target=follower.follow, args=(threading.Event(),), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()  # until whoever started it is gone


if __name__ == "__main__":
    main(sys.argv[1])
