"""Where a log stands, and the short way of a single record to its file: in C where that could be built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.log.codec import encode_appended, pack
from remuda.model.records import Appended, Events, Record
from remuda.native import tail

if TYPE_CHECKING:
    from remuda.log.directory import DirectoryFile
    from remuda.log.index import SegmentIndex
    from remuda.log.segments import TailSegment


class Counting:
    """In Python there is no short way: whoever asks for it goes the usual one."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.next_position = 0
        self.room = 0
        """How many bytes at least can be appended without another `reserve`."""
        self._number = 0
        """Of the next frame."""
        self._byte = 0
        """Where in the active segment it begins."""
        self._half = 0
        """From this byte of a segment on, the next one is made ready, which a single record does not do."""
        self._full = 0
        """From this byte on, records go to the next segment."""

    def go_to(self, segment: TailSegment, index: SegmentIndex | None, marker: bytes) -> None:
        """Records go to this segment from now on."""

    def arm(self, segment: TailSegment, file: DirectoryFile, handle: int) -> None:
        """The file of a segment is open, and single records may be written to it."""

    def disarm(self) -> None:
        """Single records are not written by the short way from now on."""

    def frame_single(self, segment: TailSegment | None, record: Record) -> bytes | None:
        """The frame of a small record, which is part of this segment from now on. None, and nothing is done, where that
        cannot be told at once."""
        return None

    def write_single(self, record: Record) -> int:
        """Write a small record when nothing is pending; gives its size. 0, and nothing is done, where that does not
        hold, or the disk refuses it."""
        return 0


if TYPE_CHECKING or tail is None:
    Standing = Counting
else:
    tail.set_up(Appended, Events, encode_appended, pack)
    Standing = tail.Tail
