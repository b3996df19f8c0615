"""What a log remembers when it is opened: the newest checkpoint, the records after it, and a report of all damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, NamedTuple

from remuda.log.disk import Disk
from remuda.log.segments import HEADER_BYTES, Counters, SealedFile, TailSegment, is_begun, parse_header
from remuda.log.state.checkpoint import Mark
from remuda.log.state.newest_segment import Newest
from remuda.log.tail.record_scan import Damage, Hole, RecordScan
from remuda.log.tail.segment_index import SegmentIndex
from remuda.model.records import Record

UNKNOWN: Final = Counters(1 << 62, 1 << 62, 1 << 62)
"""Where a segment begins that cannot be read and has none after it, until the log was read."""


@dataclass(slots=True)
class RecoveryReport:
    """What was found. Complete once all records were read."""

    torn_bytes: int = 0
    """Bytes at the end that were never wholly written, and were cut."""
    torn: list[Hole] = field(default_factory=list)
    damages: tuple[Damage, ...] = ()
    damaged_checkpoints: tuple[str, ...] = ()
    state_lost: bool = False
    """No checkpoint could be read although the log does not begin in the tail."""
    sealed: tuple[SealedFile, ...] = ()
    """The messages and events before the tail, which were read again when the state was lost."""
    copies: tuple[str, ...] = ()
    """Segments that began where another one does, and were set aside."""
    cut_off: Newest | None = None
    """The newest segment, where it is missing: what it held is not known."""
    damaged_note: str | None = None
    """Why the note of the newest segment cannot be read."""
    damaged_ledger: str | None = None
    """Why the ledger of what was collected cannot be read."""
    uncovered: tuple[range, ...] = ()
    """Without a ledger: offsets that no file holds. They were collected, or their files were lost."""
    found: dict[str, int] = field(default_factory=dict)
    """Queues whose creation the log has lost, and how many messages were found for each: they are kept."""
    next_offset: int = 0
    next_position: int = 0

    @property
    def clean(self) -> bool:
        return not (
            self.torn_bytes
            or self.damages
            or self.damaged_checkpoints
            or self.state_lost
            or self.copies
            or self.cut_off
            or self.damaged_note
            or self.damaged_ledger
            or self.found
        )

    @property
    def lost_messages(self) -> int:
        return sum(len(damage.messages or ()) for damage in self.damages)

    @property
    def lost_records(self) -> int:
        return sum(damage.records for damage in self.damages)

    def describe(self) -> str:
        """The report for people."""
        if self.clean:
            return "the log is whole"
        lines = []
        if self.torn_bytes:
            lines.append(
                f"the last {self.torn_bytes} bytes ({', '.join(hole.file for hole in self.torn)}) were not wholly "
                f"written and were cut; messages before offset {self.next_offset} and events before position "
                f"{self.next_position} are kept unless listed here"
            )
        lines += [damage.describe() for damage in self.damages]
        if self.cut_off is not None:
            lines.append(self.cut_off.describe())
        lines += [
            f"{name} begins where another segment does, and was set aside; what it alone holds is in no queue"
            for name in self.copies
        ]
        lines += [
            f"{name} cannot be read; an older state and the records after it were used"
            for name in self.damaged_checkpoints
        ]
        if self.damaged_note:
            lines.append(self.damaged_note)
        if self.damaged_ledger:
            lines.append(self.damaged_ledger)
        if self.state_lost:
            lines.append(
                "no checkpoint can be read: the queues were rebuilt from the messages and events in "
                f"{len(self.sealed)} sealed files and the tail. Options of queues, routers and what was removed or "
                "forgotten before the tail are not in them; check the queues"
            )
        lines += [
            f"no file holds offsets {gap.start} to {gap.stop - 1}: they were collected, or their files were removed"
            for gap in self.uncovered
        ]
        lines += [
            f"the creation of queue {name!r} is missing; {count} messages were found for it and are kept. It was "
            "created again with default options; declare it again with its own"
            for name, count in self.found.items()
        ]
        return "\n".join(lines)


@dataclass(slots=True)
class Recovery:
    """Take `records` to their end before anything is appended."""

    snapshot: bytes | None
    records: Iterator[Record]
    report: RecoveryReport


def read_first(disk: Disk, segment: TailSegment) -> Counters | None:
    """The counters at the start of a segment: from its header, else from its first readable frame."""
    header = parse_header(disk.read(segment.name, 0, HEADER_BYTES))
    if header is not None:
        return header
    walk = RecordScan()
    next(walk.records(disk, segment, HEADER_BYTES, disk.size(segment.name), bodies=False), None)
    return walk.met


def closed_and_last(disk: Disk, segments: Sequence[TailSegment]) -> Iterator[TailSegment]:
    """The segments to read, up to the one that a writer may be writing to. Room may be reserved for a next one, which
    gets its header once the segment before it is complete: so the header is looked for before that segment is read."""
    for at, segment in enumerate(segments):
        begun = any(is_begun(disk, other) for other in segments[at + 1 :])
        if begun or is_begun(disk, segment):
            yield segment
        if not begun:
            return


def missing_after(mark: Mark, segments: Sequence[TailSegment]) -> range:
    """The numbers of records that come after a mark and are in no segment: the one it lies in is gone, and others
    follow. Their rows may be sealed, but what they changed cannot be played again."""
    following = min(
        (segment for segment in segments if segment.sequence >= mark.segment),
        key=lambda segment: segment.sequence,
        default=None,
    )
    if following is None or following.sequence == mark.segment or following.first == UNKNOWN:
        return range(0)
    return range(mark.number, following.first.number)


def missing_before(disk: Disk, segments: Sequence[TailSegment], mark: Mark, sealed: Counters) -> tuple[Damage, ...]:
    """What is missing of the tail up to a mark: all of it was on the disk when the checkpoint was written.

    `sealed` is what comes after the sealed files.
    """
    if mark.byte == 0:
        return ()
    before = [segment for segment in segments if segment.sequence <= mark.segment]
    last = before[-1] if before else None
    here = last is not None and last.sequence == mark.segment
    size = disk.size(last.name) if last is not None else 0
    if here and size >= mark.byte:
        return ()
    # From the last segment that is known to begin before the mark.
    begin = max((at for at, segment in enumerate(before) if segment.first.offset <= mark.next_offset), default=None)
    walk = RecordScan(sealed._replace(number=mark.number) if begin is None else before[begin].first)
    for segment in before[begin or 0 :]:
        for _ in walk.records(disk, segment, HEADER_BYTES, disk.size(segment.name), bodies=False):
            pass
    walk.finish(mark.counters, last.name if last and here else f"tail/{mark.segment:016x}-*.log", size * here)
    return tuple(walk.damages) or (Damage(f"tail/{mark.segment:016x}-*.log", 0, mark.byte),)


class Passage(NamedTuple):
    """A part of the tail that a restart does not read, since a checkpoint covers it."""

    segment: TailSegment
    start: int
    stop: int
    first: Counters
    end: Counters

    @property
    def size(self) -> int:
        return self.stop - self.start

    def damages(self, disk: Disk, met: Callable[[Record], object] = lambda record: None) -> list[Damage]:
        """What of it cannot be read; the rest is shown to `met`."""
        walk = RecordScan(self.first)
        for found in walk.records(disk, self.segment, self.start, self.stop, bodies=False):
            met(found.record)
        walk.finish(self.end, self.segment.name, self.stop)
        return walk.damages


def passages(segments: Sequence[TailSegment], mark: Mark | None) -> list[Passage]:
    """What lies in the tail before a mark, oldest first."""
    if mark is None:
        return []
    found = []
    for segment, following in zip_longest(segments, segments[1:]):
        if segment.sequence > mark.segment or segment.first.number >= mark.number:
            break
        here = segment.sequence == mark.segment
        if here and segment.written < mark.byte:
            break  # what is missing up to the mark is known already
        end = mark.counters if here or following is None else min(following.first, mark.counters)
        found.append(Passage(segment, HEADER_BYTES, mark.byte if here else segment.written, segment.first, end))
    return found


class Replay:
    """Reads the records after a mark. When a log is opened, it then leaves the tail clean for what is appended next."""

    def __init__(
        self,
        disk: Disk,
        segments: list[TailSegment],
        mark: Mark | None,
        expected: Counters | None,
        sealed: Counters,
        cut_off: Newest | None = None,
    ) -> None:
        self._cut_off = cut_off
        self._disk = disk
        self._segments = segments
        self._mark = mark
        self._sealed = sealed
        """What comes after the sealed files."""
        self._walk = RecordScan(expected)
        self.bytes = 0
        self.torn: list[Hole] = []
        self.read_to: Counters | None = None
        """The counters after the last record that was read; `end` may know of more that is missing."""
        self._short: tuple[Damage, ...] = ()

    @property
    def damages(self) -> tuple[Damage, ...]:
        return (*self._short, *self._walk.damages)

    @property
    def end(self) -> Counters | None:
        """The counters after the last record."""
        return self._walk.expected

    def records(self) -> Iterator[Record]:
        """The records, changing nothing."""
        if self._mark is not None:
            self._short = missing_before(self._disk, self._segments, self._mark, self._sealed)
        segments = list(filter(self._is_read, self._segments))
        for segment in segments:
            segment.written = 0
        for segment in closed_and_last(self._disk, segments):
            yield from self._read(segment)
        self.torn = list(self._walk.holes)
        self.read_to = self._walk.expected
        if self._cut_off is not None:
            self._walk.holes.clear()
            self._walk.finish(self._cut_off.first, self._cut_off.name, 0)

    def _read(self, segment: TailSegment) -> Iterator[Record]:
        start = self._mark.byte if self._mark is not None and segment.sequence == self._mark.segment else 0
        size = self._disk.size(segment.name)
        if start == 0:
            header = self._disk.read(segment.name, 0, HEADER_BYTES)
            segment.index = SegmentIndex()
            start = len(header)
            self._walk.meet_header(segment.name, parse_header(header), start)
        segment.written = min(start, size)
        for found in self._walk.records(self._disk, segment, start, size, bodies=False):
            if segment.index is not None:
                segment.index.note(found.record, found.start)
            self.bytes += found.end - found.start
            segment.written = found.end
            yield found.record

    def cut(self) -> None:
        """Cut what was never wholly written, and reserved room that was not used."""
        cuts = {hole.file: hole.start for hole in self.torn}
        unreadable = {damage.file for damage in self._walk.damages}
        for segment in self._segments:
            segment.written = cuts.get(segment.name, segment.written)
            if segment.written == 0:
                self._disk.remove(segment.name)
            elif segment.name in cuts or segment.name not in unreadable:
                if self._is_read(segment):
                    self._secure(segment)
            else:
                segment.written = self._disk.size(segment.name)

    def _secure(self, segment: TailSegment) -> None:
        # A process that was killed may not have synced what it wrote. What comes next builds on it, so it must not
        # go away any more when the power fails.
        file = self._disk.open_append(segment.name, segment.written)
        file.sync()
        file.close()

    def _is_read(self, segment: TailSegment) -> bool:
        return self._mark is None or segment.sequence >= self._mark.segment
