"""Remuda: `Bus` on the embedded broker."""

from __future__ import annotations

from benchmarks.bus import work
from benchmarks.bus.side import Setup
from remuda import Bus

_KEPT = {
    "os": "sync=os: publish returns after a write to the log, without a sync",
    "always": "sync=always: publish returns after an fdatasync of the log",
}


class RemudaSide:
    def __init__(self, setup: Setup) -> None:
        handler = work.handle_async if setup.executor == "asyncio" else work.handle
        self._bus = Bus(setup.directory / "bus", sync=setup.sync)
        self._bus.subscribe("bench.row", executor=setup.executor, threads=setup.workers)(handler)
        self._bus.start()
        self.description = (
            f"{setup.workers} workers in {setup.executor}; durable, {_KEPT[setup.sync]}; acknowledged after the "
            "handler; with retries and dead letters as by default; batches by publish_many"
        )

    def publish(self, body: str) -> None:
        self._bus.publish("bench.row", body)

    def publish_many(self, bodies: list[str]) -> None:
        self._bus.publish_many("bench.row", bodies)
