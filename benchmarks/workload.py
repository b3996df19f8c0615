"""What a row of the throughput table asks of every contender."""

from __future__ import annotations

import itertools
import random
from typing import Final, Literal

import msgspec

Durability = Literal["always", "os", "memory"]

BATCHES: Final = {"one": 1, "batch100": 100, "batch1000": 1000}
PUBLISHERS: Final = {"1p": 1, "8p": 8}
DURABILITIES: Final[tuple[Durability, ...]] = ("always", "os", "memory")
SIZES: Final = {"200B": 200, "1KiB": 1024}


class Workload(msgspec.Struct, frozen=True):
    """Publish, keep, deliver, acknowledge. `batch` is how many messages go in, and come out, by one call."""

    name: str
    batch: int
    publishers: int
    durability: Durability
    body_bytes: int

    def bodies(self) -> list[bytes]:
        """One batch of bodies, all different, of printable bytes for peers that take texts."""
        source = random.Random(self.name)
        return [f"{source.getrandbits(4 * self.body_bytes):0{self.body_bytes}x}".encode() for _ in range(self.batch)]

    @property
    def bound_by(self) -> str:
        """What keeps Remuda from being faster here."""
        if self.durability != "always":
            return "Python's work per call" if self.batch == 1 else "copying and checksums"
        if self.batch == 1:
            return "two syncs per message" if self.publishers == 1 else "Python's work per call"
        return "two syncs per batch" if self.publishers == 1 else "syncs, shared between publishers"


def workloads() -> list[Workload]:
    """All rows, in the order of the table."""
    return [
        Workload(f"embedded/{batch}/{publishers}/{durability}/{size}", BATCHES[batch], PUBLISHERS[publishers],
                 durability, SIZES[size])
        for batch, publishers, durability, size in itertools.product(BATCHES, PUBLISHERS, DURABILITIES, SIZES)
    ]  # fmt: skip
