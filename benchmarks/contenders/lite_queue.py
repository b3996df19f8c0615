"""litequeue: one connection, guarded by a lock since its transactions are the connection's."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

from litequeue import LiteQueue as Queue

from benchmarks.workload import Workload


class LiteQueueSession:
    def __init__(self, workload: Workload, directory: Path) -> None:
        if workload.durability == "memory":
            self._queue = Queue(":memory:", check_same_thread=False)
        else:
            self._queue = Queue(directory / "litequeue.db")
        if workload.durability == "always":
            self._queue.conn.execute("PRAGMA synchronous = FULL")
        self._together = self._queue.transaction if workload.batch > 1 else nullcontext
        self._lock = threading.Lock()

    def publish(self, bodies: list[bytes]) -> None:
        with self._lock, self._together():
            for body in bodies:
                self._queue.put(body.decode())

    def consume(self, count: int) -> int:
        taken = []
        for _ in range(count):
            with self._lock:
                message = self._queue.pop()
            if message is None:
                break
            taken.append(message)
        with self._lock, self._together():
            for message in taken:
                self._queue.done(message.message_id)
        return sum(len(message.data) for message in taken)

    def close(self) -> None:
        self._queue.close()


class LiteQueue:
    name = "litequeue"
    in_batches = False

    def describe(self, workload: Workload) -> str:
        store = {
            "always": "SQLite WAL with synchronous=FULL: a sync per commit",
            "os": "SQLite WAL with its own synchronous=NORMAL: syncs at SQLite's checkpoints only",
            "memory": "SQLite in memory",
        }[workload.durability]
        if workload.batch == 1:
            return f"{store}; put, pop and done are a commit each"
        return f"{store}; the puts and the dones of a batch are a transaction, each pop is one of its own"

    def open(self, workload: Workload, directory: Path) -> LiteQueueSession:
        return LiteQueueSession(workload, directory)
