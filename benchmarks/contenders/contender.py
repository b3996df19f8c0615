"""What the driver needs of a queue, whoever makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.workload import Workload


class Session(Protocol):
    """An open, empty queue. `publish` is called by any thread, `consume` by one."""

    def publish(self, bodies: list[bytes]) -> None:
        """Return when all are kept, as far as the row asks for that."""

    def consume(self, count: int) -> int:
        """Take up to `count` messages, touch every body, acknowledge. Gives the bytes touched: 0 if none wait."""

    def close(self) -> None: ...


class Contender(Protocol):
    """One side of a row."""

    @property
    def name(self) -> str: ...

    @property
    def in_batches(self) -> bool:
        """Whether it publishes a batch by one call; then only whole batches are measured."""

    def describe(self, workload: Workload) -> str | None:
        """What is synced, confirmed and acknowledged; None where it has nothing to offer."""

    def open(self, workload: Workload, directory: Path) -> Session: ...
