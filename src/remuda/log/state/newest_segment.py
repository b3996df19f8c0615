"""Which segment was begun last: a file beside the tail, so that the loss of the newest segment is noticed.

Between two checkpoints nothing else would show that it existed. The note names a segment once the segment's header is
on the disk, and before any record is: so a segment that is named is there, and one that holds a record is named.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from remuda.log.disk import AppendFile, Disk
from remuda.log.segments import Counters, TailSegment, holds_records, is_begun
from remuda.log.state.checkpoint import Mark
from remuda.model.errors import StorageError

NAME: Final = "tail/newest"
_MAGIC: Final = b"RMDN"
_CONTENT: Final = struct.Struct("<4sQQQQ")
_CRC: Final = struct.Struct("<I")
_ENTRY_BYTES: Final = 64
"""Padded, so that no entry lies across two sectors."""
_ROOM: Final = 4096
_LONG: Final = 64 * _ENTRY_BYTES
"""Bytes from which the file is begun anew when a log is opened."""


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


class NewestKeeper:
    """Appends to the file, in room that was reserved: a full disk does not keep a segment from being begun."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: AppendFile | None = None
        self._end = 0
        self._reserved = 0

    def reserve(self) -> None:
        """Make room for the next note, or raise `DiskFull`."""
        if self._file is None:
            self._file = self._open()
        if self._reserved < self._end + _ENTRY_BYTES:
            self._file.reserve(self._end + _ROOM)
            self._reserved = self._end + _ROOM

    def note(self, newest: Newest) -> None:
        """Return once the segment is named on the disk."""
        self.reserve()
        assert self._file is not None
        self._file.write(_pack(newest))
        self._end += _ENTRY_BYTES
        self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> AppendFile:
        try:
            notes = _read(self._disk)
        except FileNotFoundError:
            notes = Notes([], 0)
        if len(notes.entries) * _ENTRY_BYTES > _LONG:
            notes = notes._replace(entries=notes.entries[-1:])
            self._disk.write_atomic(NAME, _pack(notes.entries[-1]))
        self._end = len(notes.entries) * _ENTRY_BYTES
        return self._disk.open_append(NAME, self._end)


class Notes(NamedTuple):
    """What the file says: its entries, up to the first that cannot be read."""

    entries: list[Newest]
    unread: int
    """Bytes behind them."""


class Noted(NamedTuple):
    """The segment that was named last, and what is wrong with the file."""

    newest: Newest | None
    problem: str | None = None


def read(disk: Disk) -> Newest | None:
    """The segment that was named last, as far as the file can be read."""
    try:
        entries = _read(disk).entries
    except FileNotFoundError:
        return None
    except StorageError as error:
        if error.passing:
            raise
        return None
    return entries[-1] if entries else None


def look(disk: Disk, segments: Sequence[TailSegment]) -> Noted:
    """Which segment was named last, of a log with these segments."""
    try:
        notes = _read(disk)
    except FileNotFoundError:
        return Noted(None)
    except StorageError as error:
        if error.passing:
            raise
        return Noted(None, str(error))
    newest = notes.entries[-1] if notes.entries else None
    reached = newest.segment if newest else 0
    unnamed = any(segment.sequence > reached and holds_records(disk, segment) for segment in segments)
    if notes.unread > _ENTRY_BYTES or unnamed:
        return Noted(None, f"{NAME} is damaged: whether the newest segment is missing is not known")
    return Noted(newest)  # a note that a crash cut short is of a segment that holds nothing yet


def write(disk: Disk, newest: Newest) -> None:
    """Name a segment in a copy of a log."""
    disk.write_atomic(NAME, _pack(newest))


def _read(disk: Disk) -> Notes:
    data = disk.read(NAME).rstrip(b"\0")
    notes = Notes([], 0)
    for at in range(0, len(data), _ENTRY_BYTES):
        entry = data[at : at + _ENTRY_BYTES].ljust(_ENTRY_BYTES, b"\0")
        magic, segment, *first = _CONTENT.unpack_from(entry)
        newest = Newest(segment, Counters(*first))
        if magic != _MAGIC or _pack(newest) != entry:
            return notes._replace(unread=len(data) - at)
        notes.entries.append(newest)
    return notes


def _pack(newest: Newest) -> bytes:
    content = _CONTENT.pack(_MAGIC, newest.segment, *newest.first)
    return (content + _CRC.pack(google_crc32c.value(content))).ljust(_ENTRY_BYTES, b"\0")


def is_missing(
    disk: Disk, newest: Newest, segments: Sequence[TailSegment], mark: Mark | None, sealed: Counters
) -> bool:
    """Whether the newest segment is gone. One that begins before a checkpoint's `mark` is looked for elsewhere."""
    if mark is not None and mark.segment >= newest.segment:
        return False
    if sealed.offset > newest.first.offset or sealed.position > newest.first.position:
        return False  # it was closed by age, and sealed
    return not any(segment.sequence >= newest.segment and is_begun(disk, segment) for segment in segments)
