"""Many keys in one queue: what each costs in memory, and how evenly they are served.

    python -m benchmarks.flow.tenants DIRECTORY KEYS EACH RULES

prints the resident bytes of a process in which that many messages of each key wait, with order per key or without
rules.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.effort import Effort
from benchmarks.flow.worker import QUEUE
from benchmarks.results import Result, rate_result
from benchmarks.scratch import scratch
from remuda import Messages, open_broker

_ROOT: Final = Path(__file__).resolve().parents[2]
_BATCH: Final = 1000


def memory(keys: int, each: int, effort: Effort) -> Result:
    """Resident memory with order per key, less that of the same messages in a queue without rules, by key."""
    with scratch() as directory:
        plain = _child(directory / "plain", keys, each, "plain")
        ours = _child(directory / "ordered", keys, each, "ordered")
    return Result(
        name=f"flow/memory-{keys}-keys-{each}-each",
        unit="B per key",
        remuda=round((ours - plain) / keys, 1),
        settings={"keys": keys, "messages of each": each, "plain_mb": plain // 1000000, "ordered_mb": ours // 1000000},
    )


def _child(directory: Path, keys: int, each: int, rules: str) -> int:
    command = [sys.executable, "-m", "benchmarks.flow.tenants", str(directory), str(keys), str(each), rules]
    return int(subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)


def fair(tenants: int, effort: Effort) -> Result:
    """Three messages of each tenant wait, and half a million of one. Two rounds of turns: how far the tenant that is
    served least or most is from two messages."""
    served: Counter[bytes] = Counter()
    with scratch() as directory, open_broker(directory, sync="os") as broker:
        broker.create_queue(QUEUE, type="pull", fair=True)
        for _ in range(5 * tenants // _BATCH):
            broker.publish(Messages(name=QUEUE, bodies=[b"0"] * _BATCH, key="0"))
        for _ in range(3):
            for first in range(1, tenants, _BATCH):
                names: list[str | None] = [str(number) for number in range(first, min(first + _BATCH, tenants))]
                broker.publish(Messages(name=QUEUE, bodies=[str(name).encode() for name in names], key=names))
        begin = time.perf_counter()
        for _ in range(2 * tenants // 100):
            delivery = broker.pull(QUEUE, count=100)
            assert delivery is not None
            served.update(delivery.bodies)
            delivery.ack()
        rate = 2 * tenants / (time.perf_counter() - begin)
    furthest = max(abs(served[b"%d" % number] - 2) for number in range(tenants))
    settings: dict[str, object] = {"tenants": tenants, "furthest_from_fair_percent": 50 * furthest}
    return rate_result(f"flow/fair-{tenants}-tenants", rate, {}, None, settings)


def main(directory: str, keys: str, each: str, rules: str) -> None:
    with open_broker(directory, sync="os") as broker:
        broker.create_queue(QUEUE, type="pull", ordered=rules == "ordered")
        for _ in range(int(each)):
            for first in range(0, int(keys), _BATCH):
                names: list[str | None] = [str(number) for number in range(first, first + _BATCH)]
                broker.publish(Messages(name=QUEUE, bodies=[b"x"] * _BATCH, key=names))
        gc.collect()
        status = Path("/proc/self/status").read_text()
        resident = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
        sys.stdout.write(f"{int(resident) * 1024}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
