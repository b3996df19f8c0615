"""The write position of a log, and the fast path of a single record to its file: in C where that could be built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events, Record
from remuda.model.state import State
from remuda.native import tail

if TYPE_CHECKING:
    from remuda.log.disk.system import DirectoryFile
    from remuda.log.segments import TailSegment
    from remuda.log.tail.segment_index import SegmentIndex


class Counting:
    """The counters alone. Without the C module there is no fast path, and callers take the usual one."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.next_position = 0
        self.room = 0
        """How many bytes at least can be appended without another `reserve`."""
        self._number = 0
        """Of the next frame."""
        self._byte = 0
        """Where in the active segment it begins."""
        self._direct_until = 0
        """From this byte of a segment on, the next one is made ready before single records are written directly."""
        self._full = 0
        """From this byte on, records go to the next segment."""
        self._held = 0
        """Bytes of frames that are held."""
        self._in_order = True
        """Whether a record that is held now stands behind all others."""
        self.unsynced = False
        """Whether something was written to the segment since it was last synced."""

    def go_to(self, segment: TailSegment, index: SegmentIndex | None, marker: bytes) -> None:
        """Records go to this segment from now on."""

    def arm(self, segment: TailSegment, file: DirectoryFile, handle: int) -> None:
        """Allow the fast path: the file of this segment is open, and single records may be written to it."""

    def disarm(self) -> None:
        """Close the fast path: single records are not written directly from now on."""

    def frame_single(self, segment: TailSegment | None, record: Record) -> bytes | None:
        """The frame of a small record, which is part of this segment from now on. None, with nothing done, where the
        fast path does not apply."""
        return None

    def hold_single(self, record: Record) -> int:
        """As `frame_single`, but the frame is held until `let_go`; returns its size. 0, with nothing done, where the
        fast path does not apply, or there is no room."""
        return 0

    def let_go(self) -> bytes:
        """The frames that were held, one behind the other."""
        return b""

    def write_single(self, record: Record) -> int:
        """Write a small record when nothing is pending; returns its size. 0, with nothing done, where the fast path
        does not apply, or the disk refuses it."""
        return 0


if TYPE_CHECKING or tail is None:
    WritePosition = Counting
else:
    tail.set_up(Appended, Events, Event, Messages, State, Message("", b"").mime_type)
    WritePosition = tail.Tail
