"""The files of a log: what they are called, what they cover, and which of them exist now.

`tail/<sequence>-<marker>.log` holds frames. `sealed/messages-<first>-<last>.parquet` and `sealed/events-…` hold what
was sealed; their names cover the whole range of offsets or positions, of which rows may since have been lost or
collected.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

from remuda.log.tail.segment_index import SegmentIndex
from remuda.log.tail.tail_frames import MARKER_BYTES
from remuda.model.errors import UnsupportedFormat

if TYPE_CHECKING:
    from remuda.log.disk import Disk

VERSION: Final = 1
SET_ASIDE: Final = "damaged"
"""The folder of files that could not be read completely, kept for repair. Nothing reads it."""

_MAGIC: Final = b"RMDA"
_HEADER: Final = struct.Struct("<4sHQQQQI")
HEADER_BYTES: Final = _HEADER.size
_TAIL_NAME: Final = re.compile(rf"tail/([0-9a-f]{{16}})-([0-9a-f]{{{2 * MARKER_BYTES}}})\.log")
_SEALED_NAME: Final = re.compile(r"sealed/(messages|events)-(\d{20})-(\d{20})\.parquet")


class Counters(NamedTuple):
    """How many frames, messages and events there are before a place in the log."""

    number: int
    offset: int
    position: int


@dataclass(slots=True, eq=False)
class TailSegment:
    """A file of frames. `end` is known once it takes no more; `written` is how far it can be read."""

    sequence: int
    marker: bytes
    first: Counters
    end: Counters | None = None
    written: int = 0
    reserved: int = 0
    failures: int = 0
    """How often it could not be sealed."""
    index: SegmentIndex | None = field(default=None, repr=False)
    file: str | None = None
    """What the file is called, where it was renamed."""

    @property
    def name(self) -> str:
        return self.file or f"tail/{self.sequence:016x}-{self.marker.hex()}.log"

    def header(self) -> bytes:
        packed = _HEADER.pack(_MAGIC, VERSION, self.sequence, *self.first, 0)
        crc: int = google_crc32c.value(packed[:-4])
        return packed[:-4] + crc.to_bytes(4, "little")


def parse_tail(name: str) -> TailSegment | None:
    match = _TAIL_NAME.fullmatch(name)
    return TailSegment(int(match[1], 16), bytes.fromhex(match[2]), Counters(0, 0, 0)) if match else None


def parse_header(data: bytes) -> Counters | None:
    """The counters at the start of a segment; None when its header is damaged or not yet written."""
    header = parse_whole_header(data)
    return None if header is None else header[1]


def parse_whole_header(data: bytes) -> tuple[int, Counters] | None:
    """As `parse_header`, with the segment's sequence."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, sequence, number, offset, position, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or google_crc32c.value(data[: HEADER_BYTES - 4]) != crc:
        return None
    if version > VERSION:
        raise UnsupportedFormat(
            f"a segment has format {version}, this Remuda reads up to {VERSION}; nothing was changed. "
            "Install a newer Remuda"
        )
    return sequence, Counters(number, offset, position)


def is_begun(disk: Disk, segment: TailSegment) -> bool:
    """Whether anything was ever written to a segment: room may be reserved for one that is not begun."""
    return bool(disk.read(segment.name, 0, HEADER_BYTES).strip(b"\0")) or holds_records(disk, segment)


def holds_records(disk: Disk, segment: TailSegment) -> bool:
    """Whether anything was ever written behind a segment's header."""
    few = disk.read(segment.name, HEADER_BYTES, HEADER_BYTES)
    return bool(few.strip(b"\0") or disk.read(segment.name, HEADER_BYTES).strip(b"\0"))


@dataclass(frozen=True, slots=True, order=True)
class SealedFile:
    """A Parquet file, which covers `first` to `last`. `generation` changes when collecting rewrites it."""

    first: int
    last: int
    table: str
    generation: int = 0

    @property
    def name(self) -> str:
        return f"sealed/{self.table}-{self.first:020d}-{self.last:020d}.parquet"


MESSAGES_TABLE: Final = "messages"
EVENTS_TABLE: Final = "events"


def parse_sealed(name: str) -> SealedFile | None:
    match = _SEALED_NAME.fullmatch(name)
    return SealedFile(int(match[2]), int(match[3]), match[1]) if match else None


def set_aside_name(segment: TailSegment) -> str:
    """Where a segment is kept that is a copy, or was sealed without what could not be read of it."""
    return f"{SET_ASIDE}/{segment.name.rpartition('/')[2]}"


class Files(NamedTuple):
    """What exists at one moment, each in order."""

    tail: tuple[TailSegment, ...]
    messages: tuple[SealedFile, ...]
    events: tuple[SealedFile, ...]


def list_files(names: Iterable[str]) -> Files:
    tail = sorted(filter(None, map(parse_tail, names := list(names))), key=lambda segment: segment.sequence)
    sealed = sorted(filter(None, map(parse_sealed, names)))
    return Files(
        tuple(tail),
        tuple(file for file in sealed if file.table == MESSAGES_TABLE),
        tuple(file for file in sealed if file.table == EVENTS_TABLE),
    )


class Catalog:
    """The files of an open log, shared between its threads. Every change is atomic for readers."""

    def __init__(self, files: Files) -> None:
        self._guard = threading.Lock()
        self._files = files

    def files(self) -> Files:
        return self._files

    def add_tail(self, segment: TailSegment) -> None:
        with self._guard:
            self._files = self._files._replace(tail=(*self._files.tail, segment))

    def drop_tail(self, segment: TailSegment) -> None:
        self.seal(segment, ())

    def seal(self, segment: TailSegment, sealed: Iterable[SealedFile]) -> None:
        """Put sealed files in the place of a segment."""
        with self._guard:
            files = self._files
            tables = {MESSAGES_TABLE: set(files.messages), EVENTS_TABLE: set(files.events)}
            for file in sealed:
                tables[file.table].add(file)
            self._files = Files(
                tuple(other for other in files.tail if other is not segment),
                tuple(sorted(tables[MESSAGES_TABLE])),
                tuple(sorted(tables[EVENTS_TABLE])),
            )

    def replace(self, old: SealedFile, new: SealedFile | None) -> None:
        """Put a rewritten file in the place of an old one, or nothing."""
        with self._guard:
            before = self._files.messages if old.table == MESSAGES_TABLE else self._files.events
            after = tuple(new if file == old else file for file in before if file != old or new is not None)
            changed: Any = {old.table: after}
            self._files = self._files._replace(**changed)
