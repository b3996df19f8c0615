"""How far an index is behind its log while messages come steadily: `python -m benchmarks.index.lag DIR` follows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from remuda.broker.opening import open_broker
from remuda.broker.port import Broker
from remuda.index import Follower, LogSource, open_index
from remuda.log.disk import DirectoryDisk
from remuda.model.messages import Messages

PER_SECOND: Final = 10_000
_BATCH: Final = 100
_LOOK: Final = 0.02
_QUEUE: Final = "orders"
_ROOT: Final = Path(__file__).parents[2]


def behind(directory: Path, seconds: float) -> list[float]:
    """Publish and handle for so long, and tell at every look how long ago the first message was published that is not
    in the index yet."""
    with open_broker(directory, sync="os") as broker:
        broker.create_queue(_QUEUE, type="pull")
        command = [sys.executable, "-m", "benchmarks.index.lag", str(directory)]
        with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as follower:
            try:
                assert follower.stdout is not None
                follower.stdout.readline()
                return _watch(broker, directory, seconds)
            finally:
                follower.terminate()


def _watch(broker: Broker, directory: Path, seconds: float) -> list[float]:
    index = open_index(directory / "index")
    published: list[float] = []
    """When each batch was."""
    found: list[float] = []
    began = look_at = time.monotonic()
    try:
        while (now := time.monotonic()) - began < seconds:
            while len(published) * _BATCH < (now - began) * PER_SECOND:
                published.append(time.monotonic())
                _publish(broker, len(published))
            if now >= look_at:
                reached = index.reached()
                at = (0 if reached is None else reached.offset) // _BATCH
                found.append(time.monotonic() - published[at] if at < len(published) else 0.0)
                look_at = now + _LOOK
            time.sleep(0.002)
    finally:
        index.close()
    return found


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
