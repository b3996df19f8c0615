"""Checkpoints: the state at a mark in the log, so that a restart need not replay what lies before (L4)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import msgspec

from remuda.log.disk import Disk
from remuda.log.segments import Counters
from remuda.model.errors import UnsupportedFormat

KEPT: Final = 2
VERSION: Final = 2
_MAGIC: Final = b"RMDC"
_HEADER: Final = struct.Struct("<4sHQ")
_CRC_BYTES: Final = 4
_MOST_MARK_BYTES: Final = 128
_NAME: Final = re.compile(r"checkpoint/([0-9a-f]{16})\.ckpt")


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A place in the log between two records."""

    segment: int
    byte: int
    number: int
    next_offset: int
    next_position: int
    total: int = 0
    """Bytes appended since the log was opened, those replayed included."""
    ledger: bool = False
    """Whether the log had a ledger of what was collected: then it must still be there."""

    @property
    def counters(self) -> Counters:
        return Counters(self.number, self.next_offset, self.next_position)


class Checkpoint(NamedTuple):
    sequence: int
    mark: Mark
    snapshot: bytes


class Checkpoints(NamedTuple):
    """What was found at opening: the newest that can be read first."""

    valid: list[Checkpoint]
    damaged: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode


def name_of(sequence: int) -> str:
    return f"checkpoint/{sequence:016x}.ckpt"


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def sequences(disk: Disk) -> list[int]:
    """All checkpoints there are, oldest first."""
    return sorted(int(match[1], 16) for match in map(_NAME.fullmatch, disk.list()) if match)


def write(disk: Disk, sequence: int, mark: Mark, snapshot: Iterable[bytes]) -> int:
    """Write a snapshot, which may come in parts; returns its size in bytes."""
    size = 0

    def parts() -> Iterator[bytes]:
        nonlocal size
        place = _encode(mark)
        head = _HEADER.pack(_MAGIC, VERSION, 0) + len(place).to_bytes(4, "little") + place
        crc = google_crc32c.value(head)
        yield head
        for part in snapshot:
            size += len(part)
            crc = google_crc32c.extend(crc, part)
            yield part
        yield crc.to_bytes(_CRC_BYTES, "little")

    disk.write_atomic(name_of(sequence), parts())
    return size


def read_all(disk: Disk, readable: Callable[[bytes], bool] = lambda snapshot: True) -> Checkpoints:
    """All checkpoints; those whose snapshot is not `readable` are damaged."""
    found = Checkpoints([], [])
    for sequence in reversed(sequences(disk)):
        checkpoint = _read(sequence, disk.read(name_of(sequence)))
        if checkpoint is None or not readable(checkpoint.snapshot):
            found.damaged.append(name_of(sequence))
        else:
            found.valid.append(checkpoint)
    return found


def newest_mark(disk: Disk) -> Mark | None:
    """The mark of the newest checkpoint, by its first bytes alone. `read_all` checks what they say."""
    for sequence in reversed(sequences(disk)):
        try:
            head = disk.read(name_of(sequence), 0, _HEADER.size + _MOST_MARK_BYTES)
        except FileNotFoundError:
            continue
        begin = _HEADER.size + 4
        size = int.from_bytes(head[_HEADER.size : begin], "little")
        if head[:4] == _MAGIC and begin + size <= len(head):
            try:
                return _decode_mark(head[begin : begin + size])
            except msgspec.MsgspecError:
                continue
    return None


class CheckpointKeeper:
    """The checkpoints of an open log: a few are kept, older ones removed."""

    def __init__(self, disk: Disk, found: Sequence[Checkpoint]) -> None:
        self._disk = disk
        self._kept = [(one.sequence, one.mark) for one in reversed(found)]
        self._last = max(sequences(disk), default=0)
        self.total = 0
        """Bytes of the log before the newest checkpoint that was written since it was opened."""

    def write(self, mark: Mark, snapshot: bytes | Iterable[bytes]) -> int:
        """Keep `snapshot`, whole or in parts, as the state at `mark`; returns its size."""
        self._last += 1
        size = write(self._disk, self._last, mark, (snapshot,) if isinstance(snapshot, bytes) else snapshot)
        self._kept = [*self._kept, (self._last, mark)][-KEPT:]
        self.total = mark.total
        kept = {sequence for sequence, _ in self._kept}
        for sequence in sequences(self._disk):
            if sequence not in kept:
                self._disk.remove(name_of(sequence))
        return size

    @property
    def newest_number(self) -> int:
        """How many records lie before the newest checkpoint."""
        return self._kept[-1][1].number if self._kept else 0

    @property
    def oldest_segment(self) -> int:
        """The sequence of the first segment that a restart from the oldest kept checkpoint needs."""
        return min((mark.segment for _, mark in self._kept), default=0)


def _read(sequence: int, data: bytes) -> Checkpoint | None:
    if len(data) < _HEADER.size + _CRC_BYTES or _crc(memoryview(data)[:-_CRC_BYTES]) != data[-_CRC_BYTES:]:
        return None
    magic, version, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version > VERSION:
        raise UnsupportedFormat(
            f"{name_of(sequence)} has format {version}, this Remuda reads up to {VERSION}; nothing was changed. "
            "Install a newer Remuda"
        )
    end = len(data) - _CRC_BYTES
    begin = _HEADER.size + 4
    size = int.from_bytes(data[_HEADER.size : begin], "little")
    try:
        return Checkpoint(sequence, _decode_mark(data[begin : begin + size]), data[begin + size : end])
    except msgspec.MsgspecError:
        return None


def _crc(data: bytes | memoryview) -> bytes:
    crc: int = google_crc32c.value(bytes(data))
    return crc.to_bytes(_CRC_BYTES, "little")
