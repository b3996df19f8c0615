"""Segments by their content: files that were renamed, swapped or copied are recognized by their headers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from remuda.log.disk import Disk
from remuda.log.segments import HEADER_BYTES, TailSegment, parse_whole_header
from remuda.log.tail.tail_frames import HEADER, MARKER_BYTES, Frame, frame_at, scan_file


class Arranged(NamedTuple):
    """The segments in order, and the copies: those that begin where another one does."""

    segments: list[TailSegment]
    copies: list[TailSegment]


def arrange(disk: Disk, tail: Iterable[TailSegment]) -> Arranged:
    """Sort segments by their content. Of several that begin at the same place, the one with the right file name counts,
    else the longest: read together, each would make the other's frames look out of order."""
    known = [(segment, identify(disk, segment)) for segment in tail]
    known.sort(key=lambda one: (one[0].sequence, one[1] is None, one[0].file is not None, -disk.size(one[0].name)))
    found = Arranged([], [])
    reached = -1
    for segment, first in known:
        if first is not None and first <= reached:
            found.copies.append(segment)
        else:
            found.segments.append(segment)
            reached = reached if first is None else first
    return found


def identify(disk: Disk, segment: TailSegment) -> int | None:
    """Correct a segment whose file name contradicts an intact header and first frame. Returns the number of the first
    frame; None where it cannot be read."""
    start = disk.read(segment.name, 0, HEADER_BYTES + HEADER.size)
    header = parse_whole_header(start)
    if header is None or len(start) < HEADER_BYTES + HEADER.size:
        return None
    sequence, counters = header
    length = HEADER.size + HEADER.unpack_from(start, HEADER_BYTES)[2]
    marker = start[HEADER_BYTES : HEADER_BYTES + MARKER_BYTES]
    if marker != segment.marker or sequence != segment.sequence:
        # The header or the marker may be damaged instead: only an intact first frame proves that the name is wrong, and
        # only where no other frame proves it right, since a frame's own marker is not in its checksum.
        frame = frame_at(disk.read(segment.name, HEADER_BYTES, length), marker, 0)
        if frame is None or frame.number != counters.number:
            return None
        if marker != segment.marker and _holds_frames(disk, segment):
            return None  # a checksum does not cover the marker, which is damaged in this one frame
        segment.file, segment.sequence, segment.marker = segment.name, sequence, marker
    return counters.number


def _holds_frames(disk: Disk, segment: TailSegment) -> bool:
    """Whether there are frames with the marker of the file's name."""
    read = partial(disk.read, segment.name)
    items = scan_file(read, segment.marker, HEADER_BYTES, disk.size(segment.name))
    return any(isinstance(item, Frame) for item in items)
