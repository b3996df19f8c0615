"""Reading frames in order, with an exact account of what is missing between them (L3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from remuda.log.disk import Disk
from remuda.log.segments import MESSAGES_TABLE, Counters, TailSegment
from remuda.log.tail.record_codec import Damaged, decode
from remuda.log.tail.tail_frames import Frame, scan_file
from remuda.model.records import Appended, Events, Record


class Damage(NamedTuple):
    """Bytes `start` to `end` of a file cannot be read, and these messages and events are lost with them."""

    file: str
    start: int
    end: int
    messages: range | None = None
    events: range | None = None
    records: int = 0
    """How many records are lost, changes of queues included."""

    def describe(self) -> str:
        if not self.end and "*" in self.file and self.file.startswith("sealed/"):
            text = f"{self.file}: this file is missing, and it was not collected"
        elif self.start == self.end:
            text = f"{self.file}: records before byte {self.start} are missing"
        else:
            text = f"{self.file}: bytes {self.start} to {self.end - 1} cannot be read"
        lost = [
            f"{len(numbers)} {word} ({numbers.start} to {numbers.stop - 1})"
            for word, numbers in (("messages", self.messages), ("events", self.events))
            if numbers
        ]
        if self.records or (lost and self.end):
            lost.append(f"{self.records} records")
        if lost:
            return f"{text}; lost: {', '.join(lost)}"
        return f"{text}; no message or event is missing"


def removed(table: str, first: int, stop: int) -> Damage:
    """Sealed rows that no file holds and that retention has not removed."""
    file = f"sealed/{table}-*{first:020d}*.parquet"
    numbers = range(first, stop)
    return Damage(file, 0, 0, messages=numbers) if table == MESSAGES_TABLE else Damage(file, 0, 0, events=numbers)


class Hole(NamedTuple):
    """Unreadable bytes of which it is not yet known what they held."""

    file: str
    start: int
    end: int


class Found(NamedTuple):
    """A record and where it lies."""

    start: int
    end: int
    record: Record


class RecordScan:
    """Meets the frames of one segment after the other and notes every gap between neighbours."""

    def __init__(self, expected: Counters | None = None) -> None:
        self.expected = expected
        """The counters of the next record; None while nothing was met."""
        self.damages: list[Damage] = []
        self.holes: list[Hole] = []
        """Unreadable bytes at the end of what was walked."""
        self.met: Counters | None = None
        """The first counters met."""

    def meet_header(self, file: str, counters: Counters | None, size: int) -> None:
        """Begin a segment."""
        if counters is None:
            self._hole(file, 0, size)
        else:
            self._meet(counters, file, 0)

    def records(
        self, disk: Disk, segment: TailSegment, start: int, end: int, *, bodies: bool = True
    ) -> Iterator[Found]:
        """The records between two bytes of a segment."""
        file = segment.name
        for item in scan_file(partial(disk.read, file), segment.marker, start, end):
            start, end = item.start, item.end
            if not isinstance(item, Frame):
                self._hole(file, start, end)
                continue
            try:
                offset, position, record = decode(item.kind, item.payload, bodies=bodies)
            except Damaged:
                self._hole(file, start, end)
                continue
            if not self._meet(Counters(item.number, offset, position), file, start):
                self._hole(file, start, end)
                continue
            self.expected = _after(item.number, offset, position, record)
            yield Found(start, end, record)

    def finish(self, counters: Counters, file: str, at: int) -> None:
        """End at a place whose counters are known, so that what is missing before it is noticed."""
        self._meet(counters, file, at)

    def _hole(self, file: str, start: int, end: int) -> None:
        if self.holes and self.holes[-1].file == file and self.holes[-1].end == start:
            start = self.holes.pop().start
        self.holes.append(Hole(file, start, end))

    def _meet(self, seen: Counters, file: str, at: int) -> bool:
        expected = self.expected
        if expected is None:
            expected = seen
        elif seen.number < expected.number or seen.offset < expected.offset or seen.position < expected.position:
            return False  # a frame from the past, in a place where a later one belongs
        self.met = self.met or seen
        if seen != expected or self.holes:
            messages = range(expected.offset, seen.offset) or None
            events = range(expected.position, seen.position) or None
            first, *others = self.holes or [Hole(file, at, at)]
            self.damages.append(Damage(*first, messages, events, seen.number - expected.number))
            self.damages += [Damage(*other) for other in others]
            self.holes.clear()
        self.expected = seen
        return True


def _after(number: int, offset: int, position: int, record: Record) -> Counters:
    if type(record) is Appended:
        return Counters(number + 1, offset + len(record), position)
    if type(record) is Events:
        return Counters(number + 1, offset, position + len(record))
    return Counters(number + 1, offset, position)
