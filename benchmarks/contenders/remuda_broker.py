"""Remuda: a pull queue of the embedded broker."""

from __future__ import annotations

from pathlib import Path

from benchmarks.workload import Workload
from remuda import Message, Messages, open_broker

_WAIT = 1
_AT_ONCE = 100
"""How many single messages the one consumer of eight publishers takes by one call, if so many wait."""


class RemudaSession:
    def __init__(self, workload: Workload, directory: Path) -> None:
        if workload.durability == "memory":
            self._broker = open_broker("memory://")
        else:
            self._broker = open_broker(directory / "broker", sync=workload.durability)
        self._broker.create_queue("bench", type="pull")
        self._single = workload.batch == 1
        self._wait = 0 if workload.publishers == 1 else _WAIT
        self._least = _AT_ONCE if workload.publishers > 1 else 1

    def publish(self, bodies: list[bytes]) -> None:
        if self._single:
            self._broker.publish(Message("bench.row", bodies[0]))
        else:
            self._broker.publish(Messages(name="bench.row", bodies=bodies))

    def consume(self, count: int) -> int:
        delivery = self._broker.pull("bench", max(count, self._least), timeout=self._wait)
        if delivery is None:
            return 0
        touched = sum(map(len, delivery.bodies))
        delivery.ack()
        return touched

    def close(self) -> None:
        self._broker.close()


def _shares(workload: Workload) -> bool:
    return workload.batch < _AT_ONCE and workload.publishers > 1


class Remuda:
    name = "remuda"
    in_batches = True

    def describe(self, workload: Workload) -> str:
        call = "a message" if workload.batch == 1 else f"a batch of {workload.batch}"
        kept = {
            "always": "publish and ack each return after an fdatasync of the log",
            "os": "publish and ack each return after a write to the log, without a sync",
            "memory": "memory://, nothing outlives the process",
        }[workload.durability]
        taken = (
            f"; the consumer takes and acknowledges up to {_AT_ONCE} that wait by one call" if _shares(workload) else ""
        )
        return f"sync={workload.durability}, {call} per publish, pull and ack; {kept}{taken}"

    def open(self, workload: Workload, directory: Path) -> RemudaSession:
        return RemudaSession(workload, directory)
