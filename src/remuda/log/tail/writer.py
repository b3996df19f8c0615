"""Writing the tail: open files, room kept free in them, and batches that go to the disk in one write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from remuda.log.disk import AppendFile, Disk
from remuda.log.disk.system import DirectoryFile
from remuda.log.segments import TailSegment
from remuda.log.state.newest_segment import Newest, NewestKeeper
from remuda.log.tail.write_position import WritePosition
from remuda.model.errors import DiskFull, StorageError

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Sizes of the tail's files."""

    segment_bytes: int = 64 * _MIB
    reserve_bytes: int = 4 * _MIB
    """How much room is taken from the disk at a time."""
    spare_bytes: int = 1 * _MIB
    """Room that publishing leaves free, so that answers can still be written when the disk is full."""


@dataclass(slots=True)
class SegmentPart:
    """Bytes that go to one segment."""

    segment: TailSegment
    chunks: list[bytes] = field(default_factory=list)


class TailWriter:
    """The open files of the tail. Room is reserved under the caller's lock while a batch is written outside of it.

    `position` learns which file single records may be written to directly.
    """

    def __init__(self, disk: Disk, options: LogOptions, position: WritePosition) -> None:
        self._disk = disk
        self._options = options
        self._position = position
        self._guard = threading.Lock()
        self._files: dict[int, AppendFile] = {}
        self._unsynced: list[int] = []
        self._current: TailSegment | None = None
        """The segment that was written to last, unless it is complete."""
        self._write: Callable[[bytes], None]
        """Appends to the file of the current segment."""
        self._finished: set[int] = set()
        self._newest = NewestKeeper(disk)
        self._begun = 0
        """The segment that was named last."""

    def reserve(self, segment: TailSegment, needed: int) -> None:
        """Make room up to byte `needed`, or raise `DiskFull`."""
        step = max(min(self._options.reserve_bytes, self._options.segment_bytes), 1)
        rounded = -(-needed // step) * step
        file = self._file(segment)
        if segment.sequence > self._begun:
            self._newest.reserve()
        try:
            file.reserve(rounded)
        except DiskFull:
            file.reserve(rounded := needed)
        segment.reserved = max(segment.reserved, rounded)

    def prepare(self, segment: TailSegment) -> None:
        """Have the next segment ready, so that rolling over does not wait, and finds its spare room on a full disk."""
        if segment.reserved == 0:
            try:
                self.reserve(segment, self._options.spare_bytes + self._options.spare_bytes // 4)
            except StorageError as error:
                if not passes(error):
                    raise
                # It is made when it is needed.

    def write(self, segment: TailSegment, data: bytes) -> None:
        if self._current is segment:
            self._position.unsynced = True
            self._write(data)
            segment.written += len(data)
            return
        if self.all_synced:
            self._unsynced.clear()
        sequence = segment.sequence
        file = self._files.get(sequence) or self._file(segment)
        if sequence > self._begun:
            self._begin(segment, file)
        self._position.unsynced = True
        if sequence not in self._unsynced:
            self._unsynced.append(sequence)
        self._current = None
        file.write(data)
        self._current, self._write = segment, file.write
        segment.written += len(data)
        if isinstance(file, DirectoryFile):
            self._position.arm(segment, file, file.handle)

    def _begin(self, segment: TailSegment, file: AppendFile) -> None:
        """Write the header of a segment, and name it as the newest, before anything else is written to it.

        What came before is synced first: a power loss that kept the new segment and tore the old would look like
        damage. The header is synced before the note: else one could leave the note alone.
        """
        self.sync()
        self._unsynced.clear()
        if segment.written == 0:
            header = segment.header()
            file.write(header)
            segment.written = len(header)
        file.sync()
        self._newest.note(Newest(segment.sequence, segment.first))
        self._begun = segment.sequence

    def finish(self, segment: TailSegment) -> None:
        """Give back the room that a full segment did not need."""
        if segment.sequence in self._files:
            self._files[segment.sequence].truncate(segment.written)
            self._finished.add(segment.sequence)

    @property
    def all_synced(self) -> bool:
        return not self._unsynced or (self._is_last_alone and not self._position.unsynced)

    @property
    def _is_last_alone(self) -> bool:
        """Whether only the segment that was written to last may have to be synced."""
        return len(self._unsynced) == 1 and not self._finished and self._current is not None

    def sync(self) -> None:
        """Bring everything written so far to the disk, oldest first."""
        if self._is_last_alone:
            # It goes on where it was: most syncs are of this kind.
            if self._position.unsynced:
                self._files[self._unsynced[0]].sync()
                self._position.unsynced = False
            return
        self._forget_current()
        while self._unsynced:
            sequence = self._unsynced[0]
            self._files[sequence].sync()
            del self._unsynced[0]
        for sequence in self._finished:
            with self._guard:
                self._files.pop(sequence).close()
        self._finished.clear()

    def _forget_current(self) -> None:
        self._current = None
        self._position.disarm()

    def close(self) -> None:
        self._forget_current()
        with self._guard:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._newest.close()

    def _file(self, segment: TailSegment) -> AppendFile:
        with self._guard:
            file = self._files.get(segment.sequence)
            if file is None:
                file = self._files[segment.sequence] = self._disk.open_append(segment.name, 0)
            return file


class WriteBatch:
    """What was pending when it was taken. Written and synced outside the caller's lock, one batch at a time."""

    def __init__(
        self,
        writer: TailWriter,
        parts: Sequence[SegmentPart],
        finished: Sequence[TailSegment],
        upcoming: TailSegment | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._parts = parts
        self._finished = finished
        self._upcoming = upcoming
        self._failed = failed
        self._written = 0

    def __bool__(self) -> bool:
        return bool(self._parts or self._finished)

    @property
    def unwritten(self) -> Sequence[SegmentPart]:
        """What the last call of `write` did not get to."""
        return self._parts[self._written :]

    @property
    def finished(self) -> Sequence[TailSegment]:
        """Segments that take no more once this is written."""
        return self._finished

    def write(self, *, final: bool = True) -> None:
        """Hand everything to the operating system: it survives the end of the process, not yet a power loss.

        Unless this is `final`, an error that is `passing`, like a full disk, leaves the log as it is: `Log.take_back`
        makes what is unwritten pending again, and it is written later where it would have stood.
        """
        try:
            for at, part in enumerate(self._parts):
                self._writer.write(part.segment, b"".join(part.chunks))
                self._written = at + 1
            for segment in self._finished:
                self._writer.finish(segment)
            if self._upcoming is not None:
                self._writer.prepare(self._upcoming)
        except BaseException as error:
            if final or not passes(error):
                self._failed(error)
            raise

    def sync(self, *, final: bool = True) -> None:
        """Return once this batch and all before it survive a power loss. `final` is as for `write`."""
        try:
            self._writer.sync()
        except BaseException as error:
            if final or not passes(error):
                self._failed(error)
            raise


def passes(error: BaseException) -> bool:
    """Whether what failed may succeed later, with nothing lost meanwhile."""
    return isinstance(error, StorageError) and error.passing


def broken(cause: BaseException) -> StorageError:
    """The error of every call after a write failed."""
    reason = str(cause) or type(cause).__name__
    return StorageError(
        f"the log stopped because a write failed ({reason}); everything confirmed before is kept. "
        "Fix the cause, then close and open again"
    )
