"""huey: the storage under SqliteHuey and MemoryHuey, which is where its messages wait."""

from __future__ import annotations

from pathlib import Path

from huey.storage import MemoryStorage, SqliteStorage

from benchmarks.workload import Workload


class HueySession:
    def __init__(self, workload: Workload, directory: Path) -> None:
        if workload.durability == "memory":
            self._storage = MemoryStorage("bench")
        else:
            fsync = workload.durability == "always"
            self._storage = SqliteStorage("bench", filename=str(directory / "huey.db"), fsync=fsync)

    def publish(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._storage.enqueue(body)

    def consume(self, count: int) -> int:
        touched = 0
        for _ in range(count):
            body = self._storage.dequeue()
            if body is None:
                break
            touched += len(body)
        return touched

    def close(self) -> None:
        self._storage.close()


class Huey:
    name = "huey"
    in_batches = False

    def describe(self, workload: Workload) -> str:
        if workload.durability == "memory":
            return "MemoryHuey's storage, one by one; taking a message is its end, there is no acknowledgement"
        mode = {
            "always": "fsync=True: SQLite WAL, synchronous=FULL, a sync at each enqueue and dequeue",
            "os": "fsync=False: SQLite WAL, synchronous=OFF, no syncs (its default would sync as fsync=True does)",
        }[workload.durability]
        return f"SqliteHuey's storage, {mode}; one by one; taking a message deletes it, there is no acknowledgement"

    def open(self, workload: Workload, directory: Path) -> HueySession:
        return HueySession(workload, directory)
