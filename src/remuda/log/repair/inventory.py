"""What a log is made of when it is opened: which files, from which checkpoint on, and what of it is missing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

from remuda.log.disk import Disk
from remuda.log.repair.recovery import UNKNOWN, RecoveryReport, read_first
from remuda.log.segments import Counters, Files, TailSegment, list_files, set_aside_name
from remuda.log.state import checkpoint as checkpoints
from remuda.log.state import ledger as ledgers
from remuda.log.state import newest_segment
from remuda.log.state.checkpoint import Checkpoint, Mark
from remuda.log.state.ledger import Ledger
from remuda.log.state.newest_segment import Newest
from remuda.log.tail.segment_order import arrange
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


class Survey(NamedTuple):
    """The files of a log, as opening it and checking it find them. Nothing was changed."""

    names: list[str]
    checkpoints: list[Checkpoint]
    """Those that can be read, the newest first."""
    damaged_checkpoints: tuple[str, ...]
    files: Files
    """The segments among them are in order, each with what it begins at."""
    copies: tuple[TailSegment, ...]
    begun: Newest | None
    """The segment that was named last."""
    cut_off: Newest | None
    """That segment, where it is missing."""
    damaged_note: str | None

    @property
    def mark(self) -> Mark | None:
        """The place of the newest checkpoint."""
        return self.checkpoints[0].mark if self.checkpoints else None

    @property
    def segments(self) -> list[TailSegment]:
        return list(self.files.tail)


def survey(disk: Disk, readable: Callable[[bytes], bool]) -> Survey:
    """Look at the files of a directory, also beside its writer. A checkpoint whose snapshot is not `readable` counts
    as damaged."""
    # Checkpoints first: all that lies before their marks is in the files by the time those are listed.
    found = checkpoints.read_all(disk, readable)
    mark = found.valid[0].mark if found.valid else None
    begun = newest_segment.read(disk)
    # The tail before the sealed files: what is sealed between the two looks is then in both, not in neither.
    tail = list_files(disk.list()).tail
    names = disk.list()
    arranged = arrange(disk, tail)
    files = list_files(names)._replace(tail=tuple(arranged.segments))
    segments = read_starts(disk, files)
    # Once more: a segment that was begun meanwhile is named by now.
    noted = newest_segment.look(disk, segments)
    gone = begun is not None and newest_segment.is_missing(disk, begun, segments, mark, sealed_end(files))
    return Survey(
        names,
        found.valid,
        tuple(found.damaged),
        files,
        tuple(arranged.copies),
        begun,
        begun if gone else None,
        noted.problem,
    )


def take_inventory(disk: Disk, readable: Callable[[bytes], bool]) -> Inventory:
    """Look at the files of a locked directory, and tidy up what a crash left half done."""
    found = survey(disk, readable)
    files, mark, begun = found.files, found.mark, found.begun
    for name in found.names:
        if name.startswith("sealed/") and name.endswith(".tmp"):
            disk.remove(name)  # what a crash left half written
    for copy in found.copies:
        disk.rename(copy.name, set_aside_name(copy))
    next_sequence = max(
        [
            1,
            *(_after_mark(checkpoint.mark) for checkpoint in found.checkpoints),
            *(segment.sequence + 1 for segment in files.tail),
        ]
    )
    segments = _drop_sealed(disk, files, found.segments, mark.segment if mark else None)
    ledger, unreadable = _ledger(disk, mark)
    begins_in_tail = (
        segments[0].sequence == 1 or segments[0].first.number == 0 or segments[0].first is UNKNOWN
        if segments
        else not found.damaged_checkpoints and (begun is None or begun.first.number == 0)
    )
    state_lost = mark is None and bool(files.messages or files.events or not begins_in_tail)
    report = RecoveryReport(
        damaged_checkpoints=found.damaged_checkpoints,
        state_lost=state_lost,
        sealed=files.messages + files.events if state_lost else (),
        copies=tuple(set_aside_name(copy) for copy in found.copies),
        cut_off=found.cut_off,
        damaged_note=found.damaged_note,
        damaged_ledger=unreadable,
    )
    return Inventory(
        files._replace(tail=tuple(segments)),
        found.checkpoints,
        ledger,
        max(next_sequence, begun.segment + 1 if begun else 1),
        expected_after(mark, files, segments, state_lost),
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


def expected_after(mark: Mark | None, files: Files, segments: list[TailSegment], state_lost: bool) -> Counters:
    """The counters at which the records to be read should begin: after the newest checkpoint, else with the tail."""
    if mark is not None:
        return mark.counters
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
