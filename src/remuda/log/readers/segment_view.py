"""The tail as a spectator sees it: files come and go, and the newest grows while it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from remuda.log.disk import Disk
from remuda.log.repair.recovery import read_first
from remuda.log.sealed import queue_changes
from remuda.log.sealed.queue_changes import is_attributed
from remuda.log.segments import HEADER_BYTES, Counters, SealedFile, TailSegment, list_files
from remuda.log.tail.record_codec import Damaged, decode
from remuda.log.tail.segment_index import SegmentIndex
from remuda.log.tail.segment_order import identify
from remuda.log.tail.tail_frames import Frame, Unreadable, frame_at, scan_file
from remuda.model.records import Appended, Events, QueueChange, Record


class Listing(NamedTuple):
    """The files of a log at one moment, the newest segment of the tail last."""

    tail: tuple[SegmentView, ...]
    messages: tuple[SealedFile, ...]
    events: tuple[SealedFile, ...]


class SegmentView:
    """A segment of the tail, what was read of it so far, and where to go on from a number."""

    def __init__(self, disk: Disk, segment: TailSegment, first: Counters) -> None:
        self._disk = disk
        self._segment = segment
        self.first = first
        self.end = first
        """The counters after the last frame read."""
        self._read_to = HEADER_BYTES
        self._index = SegmentIndex()
        self.changes: list[QueueChange] = []
        """Changes of queues read so far that name who made them."""

    def segment(self) -> TailSegment:
        """The segment as it is now, for looking up single messages in it."""
        self.read_on()
        found = self._segment
        return TailSegment(
            found.sequence, found.marker, self.first, written=self._read_to, index=self._index, file=found.file
        )

    def records(self, *, offset: int = 0, position: int = 0, bodies: bool = True) -> Iterator[Record]:
        """The records there are now, beginning at or before `offset` or `position`, whichever is asked for."""
        index, number = (self._index.events, position) if position else (self._index.messages, offset)
        block = index.block(number)
        yield from self._read(HEADER_BYTES if block is None else block.start, bodies)

    def read_on(self) -> Counters:
        """The counters at the end there is now."""
        for _ in self._read(self._read_to, bodies=False):
            pass
        return self.end

    def _read(self, start: int, bodies: bool) -> Iterator[Record]:
        for frame in self._frames(start):
            try:
                offset, position, record = decode(frame.kind, frame.payload, bodies=bodies)
            except Damaged:
                continue
            if frame.start >= self._read_to:
                self._note(frame, offset, position, record)
            yield record

    def _note(self, frame: Frame, offset: int, position: int, record: Record) -> None:
        self._index.note(record, frame.start)
        if isinstance(record, QueueChange) and is_attributed(record):
            self.changes.append(record)
        if type(record) is Appended:
            offset += len(record)
        elif type(record) is Events:
            position += len(record)
        self.end = Counters(frame.number + 1, offset, position)
        self._read_to = frame.end

    def _frames(self, start: int) -> Iterator[Frame]:
        read = partial(self._disk.read, self._segment.name)
        for item in scan_file(read, self._segment.marker, start, self._disk.size(self._segment.name)):
            if isinstance(item, Frame):
                yield item
            elif isinstance(item, Unreadable):
                # A frame may have been caught half written while the one after it was already there: look again.
                again = frame_at(read(item.start, item.end - item.start), self._segment.marker, 0, item.start)
                if again is not None:
                    yield from self._frames(item.start)
                    return


class Lister:
    """Lists the files of a log, and keeps what was learned of each segment."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._views: dict[str, SegmentView] = {}

    def list(self) -> Listing:
        # The tail first: what is sealed between the two looks is then in both, not in neither.
        tail = list_files(self._disk.list()).tail
        views = {segment.name: view for segment in tail if (view := self._view(segment)) is not None}
        self._views = views
        _, messages, events = list_files(self._disk.list())
        return Listing(tuple(views.values()), messages, events)

    def changes(self) -> Sequence[QueueChange]:
        """Changes of queues that name who made them, in order."""
        views = self.list().tail
        # A segment that is just being sealed is there twice.
        twice = {queue_changes.name_of(view.segment()) for view in views}
        found = [*queue_changes.readable(self._disk, (name for name in self._disk.list() if name not in twice))]
        for view in views:
            view.read_on()
            found += view.changes
        return found

    def _view(self, segment: TailSegment) -> SegmentView | None:
        known = self._views.get(segment.name)
        if known is not None:
            return known
        try:
            # The header of a segment is written when all before it are whole. Without it there is nothing to read yet.
            identify(self._disk, segment)
            first = read_first(self._disk, segment)
        except FileNotFoundError:
            return None  # sealed meanwhile: the second look finds it
        return None if first is None else SegmentView(self._disk, segment, first)
