"""Segments by what they hold: files that were renamed, swapped or copied are known by their own headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from remuda.log.disk import Disk
from remuda.log.frames import HEADER, MARKER_BYTES, frame_at
from remuda.log.segments import HEADER_BYTES, TailSegment, parse_whole_header


class Arranged(NamedTuple):
    """The segments in order, and those that begin where another one does."""

    segments: list[TailSegment]
    copies: list[TailSegment]


def arrange(disk: Disk, tail: Iterable[TailSegment]) -> Arranged:
    """Put segments in the order of what they hold. Of several that begin at one place the one that bears its own name
    counts, or the longest: two of them would make each other's messages unreadable."""
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
    """Believe a file rather than its name, where its header and first frame are whole; the number of that frame."""
    start = disk.read(segment.name, 0, HEADER_BYTES + HEADER.size)
    header = parse_whole_header(start)
    if header is None or len(start) < HEADER_BYTES + HEADER.size:
        return None
    sequence, counters = header
    length = HEADER.size + HEADER.unpack_from(start, HEADER_BYTES)[2]
    marker = start[HEADER_BYTES : HEADER_BYTES + MARKER_BYTES]
    if marker != segment.marker or sequence != segment.sequence:
        # Whoever damaged this one place did not make a frame of it that is whole.
        frame = frame_at(disk.read(segment.name, HEADER_BYTES, length), marker, 0)
        if frame is None or frame.number != counters.number:
            return None
        segment.file, segment.sequence, segment.marker = segment.name, sequence, marker
    return counters.number
