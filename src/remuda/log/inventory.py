"""What a log is made of when it is opened: which files, from which checkpoint on, and what of it is missing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

from remuda.log import checkpoint as checkpoints
from remuda.log import ledger as ledgers
from remuda.log import newest as newest_segment
from remuda.log.arranging import arrange
from remuda.log.checkpoint import Checkpoint, Mark
from remuda.log.disk import Disk
from remuda.log.ledger import Ledger
from remuda.log.newest import Newest
from remuda.log.recovery import UNKNOWN, RecoveryReport, read_first
from remuda.log.segments import Counters, Files, TailSegment, list_files, set_aside_name
from remuda.model.errors import StorageError


class Inventory(NamedTuple):
    """A log before anything of it is played. What a crash left half done was removed or set aside."""

    files: Files
    checkpoints: list[Checkpoint]
    """Those that can be read, the newest first."""
    ledger: Ledger | None
    next_sequence: int
    """Of the segment that is begun next."""
    expected: Counters
    """Where the records after the newest checkpoint begin."""
    report: RecoveryReport

    @property
    def newest(self) -> Checkpoint | None:
        return self.checkpoints[0] if self.checkpoints else None

    @property
    def mark(self) -> Mark | None:
        """The place of the newest checkpoint."""
        return self.checkpoints[0].mark if self.checkpoints else None


def take_inventory(disk: Disk, readable: Callable[[bytes], bool]) -> Inventory:
    """Look at the files of a locked directory. A checkpoint whose snapshot is not `readable` counts as damaged."""
    found = checkpoints.read_all(disk, readable)
    mark = found.valid[0].mark if found.valid else None
    names = disk.list()
    for name in names:
        if name.startswith("sealed/") and name.endswith(".tmp"):
            disk.remove(name)  # what a crash left half written
    files = list_files(names)
    arranged = arrange(disk, files.tail)
    for copy in arranged.copies:
        disk.rename(copy.name, set_aside_name(copy))
    files = files._replace(tail=tuple(arranged.segments))
    next_sequence = max(
        [
            1,
            *(_after_mark(checkpoint.mark) for checkpoint in found.valid),
            *(segment.sequence + 1 for segment in files.tail),
        ]
    )
    segments = read_starts(disk, files)
    begun = _newest(disk)
    gone = begun is not None and newest_segment.is_missing(disk, begun, segments, mark, sealed_end(files))
    segments = _drop_sealed(disk, files, segments, mark.segment if mark else None)
    ledger, unreadable = _ledger(disk, mark)
    begins_in_tail = (
        segments[0].sequence == 1 or segments[0].first.number == 0 or segments[0].first is UNKNOWN
        if segments
        else not found.damaged and (begun is None or begun.first.number == 0)
    )
    state_lost = mark is None and bool(files.messages or files.events or not begins_in_tail)
    report = RecoveryReport(
        damaged_checkpoints=tuple(found.damaged),
        state_lost=state_lost,
        sealed=files.messages + files.events if state_lost else (),
        copies=tuple(set_aside_name(copy) for copy in arranged.copies),
        cut_off=begun if gone else None,
        damaged_ledger=unreadable,
    )
    return Inventory(
        files._replace(tail=tuple(segments)),
        found.valid,
        ledger,
        max(next_sequence, begun.segment + 1 if begun else 1),
        mark.counters if mark else _before_tail(files, segments, state_lost),
        report,
    )


def read_starts(disk: Disk, files: Files) -> list[TailSegment]:
    """The segments with what they begin at. One that cannot be read at all begins where the next one does: the one
    before it is then still read to its end."""
    following = UNKNOWN
    for segment in reversed(files.tail):
        following = segment.first = read_first(disk, segment) or following
        segment.written = disk.size(segment.name)
    return list(files.tail)


def _newest(disk: Disk) -> Newest | None:
    try:
        return newest_segment.read(disk)
    except StorageError:
        return None  # nothing is lost with it, and `remuda check` reports it


def _ledger(disk: Disk, mark: Mark | None) -> tuple[Ledger | None, str | None]:
    """The ledger, or why it cannot be read."""
    try:
        return ledgers.read(disk, mark), None
    except StorageError as error:
        if error.passing:
            raise
        return None, str(error)


def _after_mark(mark: Mark) -> int:
    """The sequence of a segment that is begun after a mark: never that of the segment the mark lies in, even if it is
    gone, or the next start would look for the mark in the new one."""
    return mark.segment + 1 if mark.byte else mark.segment


def _before_tail(files: Files, segments: list[TailSegment], state_lost: bool) -> Counters:
    """The counters at which the tail should begin when no checkpoint says so."""
    if not (state_lost and segments) or segments[0].first is UNKNOWN:
        return Counters(0, 0, 0)
    first = segments[0].first
    _, offset, position = sealed_end(files)
    return Counters(first.number, min(offset, first.offset), min(position, first.position))


def sealed_end(files: Files) -> Counters:
    offset = max((file.last + 1 for file in files.messages), default=0)
    return Counters(0, offset, max((file.last + 1 for file in files.events), default=0))


def _drop_sealed(disk: Disk, files: Files, segments: list[TailSegment], needed: int | None) -> list[TailSegment]:
    """Remove segments that a crash left although they were sealed. Not those from the `needed` one on, where the newest
    checkpoint continues: a backup may hold their rows in sealed files as well, but not the changes of queues."""
    messages = {(file.first, file.last) for file in files.messages}
    events = {(file.first, file.last) for file in files.events}
    left = []
    for segment, following in zip_longest(segments, segments[1:]):
        if following is not None and (needed is None or segment.sequence < needed):
            offsets = (segment.first.offset, following.first.offset - 1)
            positions = (segment.first.position, following.first.position - 1)
            wanted = (offsets[0] <= offsets[1]) + (positions[0] <= positions[1])
            if wanted and wanted == (offsets in messages) + (positions in events):
                disk.remove(segment.name)
                continue
        left.append(segment)
    return left
