"""huey: its consumer on SQLite, or in memory."""

from __future__ import annotations

from typing import Any, Final

from huey import MemoryHuey, SqliteHuey
from huey.consumer import Consumer

from benchmarks.bus import work
from benchmarks.bus.side import LONGEST_POLL, SHORTEST_POLL, Setup, Unfit

_PATIENCE: Final = 30
"""How long, in seconds, a writer waits for SQLite's lock."""


class HueySide:
    def __init__(self, setup: Setup) -> None:
        if setup.sync == "memory" and setup.executor == "processes":
            raise Unfit("MemoryHuey lives in one process")
        kind = "process" if setup.executor == "processes" else "thread"
        huey = _huey(setup)
        self._task: Any = huey.task()(work.handle)
        consumer = Consumer(
            huey,
            workers=setup.workers,
            worker_type=kind,
            initial_delay=SHORTEST_POLL,
            max_delay=LONGEST_POLL,
            periodic=False,
        )
        consumer.start()
        coroutines = ", since it has no coroutines" if setup.executor == "asyncio" else ""
        self.description = (
            f"{setup.workers} workers, each a {kind}{coroutines}; {_kept(setup)}; taking a message deletes it, there "
            "is no acknowledgement; no batches; it polls every 1 to 10 ms where its default is 100 ms to 10 s"
        )

    def publish(self, body: str) -> None:
        self._task(body)

    def publish_many(self, bodies: list[str]) -> None:
        for body in bodies:
            self._task(body)


def _huey(setup: Setup) -> Any:
    if setup.sync == "memory":
        return MemoryHuey("bench")
    fsync = setup.sync == "always"
    return SqliteHuey("bench", filename=str(setup.directory / "huey.db"), fsync=fsync, timeout=_PATIENCE)


def _kept(setup: Setup) -> str:
    return {
        "memory": "MemoryHuey: not durable, nothing outlives the process",
        "os": "SqliteHuey with fsync=False: durable as sync=os is, no syncs",
        "always": "SqliteHuey with fsync=True, as its default syncs: a sync at each enqueue and dequeue",
    }[setup.sync]
