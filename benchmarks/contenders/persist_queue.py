"""persist-queue: SQLiteAckQueue."""

from __future__ import annotations

from pathlib import Path

from persistqueue import Empty, SQLiteAckQueue

from benchmarks.workload import Workload


class PersistQueueSession:
    def __init__(self, directory: Path) -> None:
        self._queue = SQLiteAckQueue(str(directory / "persist-queue"), multithreading=True)

    def publish(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._queue.put(body)

    def consume(self, count: int) -> int:
        touched = 0
        for _ in range(count):
            try:
                item = self._queue.get(block=False, raw=True)
            except Empty:
                break
            touched += len(item["data"])
            self._queue.ack(id=item["pqid"])
        return touched

    def close(self) -> None:
        self._queue.close()


class PersistQueue:
    name = "persist-queue"
    in_batches = False

    def describe(self, workload: Workload) -> str | None:
        if workload.durability == "memory":
            return None
        return (
            "SQLiteAckQueue, multithreading=True, one by one: put, get and ack are a commit each, "
            "SQLite WAL with synchronous=FULL, which has no setting: it syncs in os rows too"
        )

    def open(self, workload: Workload, directory: Path) -> PersistQueueSession:
        return PersistQueueSession(directory)
