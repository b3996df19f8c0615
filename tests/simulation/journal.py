"""What one process handed to the log, and how far it got: the measure of what a crash may take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.options import BrokerOptions
from remuda.core.effects import Effects
from remuda.log.segments import HEADER_BYTES, TailSegment, list_files
from remuda.log.state import checkpoint
from remuda.log.tail.segment_order import identify
from remuda.log.tail.tail_frames import Frame, scan_file
from remuda.model.errors import StorageError
from remuda.model.records import Record
from tests.simulation.disk import CrashKind, SimulatedDisk
from tests.simulation.model import require


class Journal:
    """Records by the number of their frame, from `base` on. None stands for one that a power loss took."""

    def __init__(self) -> None:
        self.base: int | None = None
        self.records: list[Record | None] = []
        self.written = 0
        self.synced = 0

    def rebase(self) -> None:
        """All of it is on the disk for good; count anew from here."""
        assert self.base is not None
        self.base += len(self.records)
        self.records = []
        self.written = self.synced = 0

    def kept(self) -> Iterator[Record]:
        return (record for record in self.records if record is not None)

    @property
    def has_holes(self) -> bool:
        return None in self.records

    def cut(self, disk: SimulatedDisk, kind: CrashKind) -> list[Record]:
        """Forget what the crash took, after checking that it took nothing it must not; gives what was lost."""
        if self.base is None:
            return []
        found, settled = surviving(disk)
        alive = [self.base + at < settled or self.base + at in found for at in range(len(self.records))]
        promised = self.written if kind is CrashKind.KILL else self.synced
        for at in range(promised):
            require(
                alive[at] or self.records[at] is None,
                f"L2: record {at} of {len(self.records)} is gone, which no {kind.value} may take: {self.records[at]}",
            )
        lost = [record for record, lives in zip(self.records, alive, strict=True) if record is not None and not lives]
        self.records = [record if lives else None for record, lives in zip(self.records, alive, strict=True)]
        while self.records and self.records[-1] is None:
            self.records.pop()
        self.written = len(self.records)
        if kind is CrashKind.POWER:
            self.synced = len(self.records)
        return lost

    def reach(self, number: int) -> None:
        """The log goes on with this frame. What it skips was lost, though something behind it was not."""
        if self.base is None:
            self.base = number
        end = self.base + len(self.records)
        require(number >= end, f"L2: the log goes on with frame {number}, although there are {end}")
        self.records += [None] * (number - end)

    def join(self, following: Journal) -> None:
        """Go on with what a process wrote that ended while it was opening the log."""
        if following.base is None:
            return
        self.reach(following.base)
        before = len(self.records)
        self.records += following.records
        self.written = before + following.written
        if following.synced:
            self.synced = before + following.synced


class WatchedEngine(Engine):
    """An engine that writes down what it does, also when it ends in the middle of it."""

    def __init__(
        self, disk: SimulatedDisk, options: BrokerOptions, worker: int, now: int, journal: Journal,
        extensions: Extensions,
    ) -> None:  # fmt: skip
        self.journal = journal
        self.stalled = False
        """Whether something could not be written, for want of room, and waits for its turn."""
        super().__init__(disk, options, extensions, worker, now)

    def record(self) -> Effects:
        if self.journal.base is None:
            self.journal.base = self.log.mark().number
        effects = super().record()
        self.journal.records += effects.records
        return effects

    def commit(self, *, sync: bool) -> None:
        reached = len(self.journal.records)
        if reached % 2 and self._commit_at_once(reached, sync):
            return
        batch = self.take()
        try:
            batch.write(final=False)
            self.journal.written = reached
            if sync:
                batch.sync(final=False)
                self.journal.synced = reached
        except StorageError as error:
            if error.passing:
                self.log.take_back(batch)
                self.stalled = True
            raise
        self.stalled = False

    def _commit_at_once(self, reached: int, sync: bool) -> bool:
        """As the host does with single messages, where nobody else writes: under its lock, and then the sync alone."""
        try:
            if not self.log.write_now():
                return False
            self.journal.written = reached
            if sync:
                self.log.sync()
                self.journal.synced = reached
        except StorageError as error:
            if error.passing:
                self.stalled = True
            else:
                self.log.abandon(error)
            raise
        self.stalled = False
        return True


def surviving(disk: SimulatedDisk) -> tuple[set[int], int]:
    """The numbers of the frames that can be read in the tail, and the one before which a checkpoint tells it all."""
    found: set[int] = set()
    for segment in list_files(disk.list()).tail:
        numbers = _numbers(disk, segment)
        if not numbers and identify(disk, segment) is not None:
            numbers = _numbers(disk, segment)  # of the only frame, all but its marker may have come to the platter
        found |= numbers
    valid = checkpoint.read_all(disk).valid
    return found, max((one.mark.number for one in valid), default=0)


def _numbers(disk: SimulatedDisk, segment: TailSegment) -> set[int]:
    read = partial(disk.read, segment.name)
    items = scan_file(read, segment.marker, HEADER_BYTES, disk.size(segment.name))
    return {item.number for item in items if isinstance(item, Frame)}
