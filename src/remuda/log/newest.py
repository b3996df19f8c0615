"""Which segment was begun last: a file beside the tail, so that the loss of the newest segment is noticed.

Between two checkpoints nothing else would show that it existed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from remuda.log.checkpoint import Mark
from remuda.log.disk import Disk
from remuda.log.segments import HEADER_BYTES, Counters, TailSegment
from remuda.model.errors import StorageError

NAME: Final = "tail/newest"
_MAGIC: Final = b"RMDN"
_CONTENT: Final = struct.Struct("<4sQQQQ")
_CRC: Final = struct.Struct("<I")


class Newest(NamedTuple):
    """A segment, and the counters it begins at."""

    segment: int
    first: Counters

    @property
    def name(self) -> str:
        return f"tail/{self.segment:016x}-*.log"

    def describe(self) -> str:
        """What it means that it is missing."""
        return (
            f"{self.name}: this segment, the newest one, is missing or empty; lost: everything from offset "
            f"{self.first.offset} and position {self.first.position} on. How much that was is not known"
        )


def write(disk: Disk, newest: Newest) -> None:
    """Note a segment; its header must be on the disk."""
    content = _CONTENT.pack(_MAGIC, newest.segment, *newest.first)
    disk.write_atomic(NAME, content + _CRC.pack(google_crc32c.value(content)))


def read(disk: Disk) -> Newest | None:
    """What was noted; None where nothing was. Raises `StorageError` where it cannot be read."""
    try:
        data = disk.read(NAME)
    except FileNotFoundError:
        return None
    content, crc = data[: _CONTENT.size], data[_CONTENT.size :]
    if _CRC.pack(google_crc32c.value(content)) != crc or len(content) != _CONTENT.size or content[:4] != _MAGIC:
        raise StorageError(f"{NAME} is damaged: whether the newest segment is missing is not known")
    _, segment, *first = _CONTENT.unpack(content)
    return Newest(segment, Counters(*first))


def is_missing(
    disk: Disk, newest: Newest, segments: Sequence[TailSegment], mark: Mark | None, sealed: Counters
) -> bool:
    """Whether the newest segment is gone. One that begins before a checkpoint's `mark` is looked for elsewhere."""
    if mark is not None and mark.segment >= newest.segment:
        return False
    if sealed.offset > newest.first.offset or sealed.position > newest.first.position:
        return False  # it was closed by age, and sealed
    return not any(
        segment.sequence >= newest.segment and disk.read(segment.name, 0, HEADER_BYTES + 1).strip(b"\0")
        for segment in segments
    )
