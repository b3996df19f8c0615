"""Changes of queues that name who made them: status, options, removal and forgotten messages.

In the tail these are frames of their own, between messages and events. When a segment is sealed, they are kept in a
small file beside the sealed ones. Queues that come and go by themselves leave nothing here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from remuda.log.disk import Disk
from remuda.log.eventlog import EventLog
from remuda.log.segments import TailSegment
from remuda.log.state import checked
from remuda.model.errors import StorageError
from remuda.model.records import FORGOTTEN, QueueChange, Record

FOLDER: Final = "index/"
_PREFIX: Final = f"{FOLDER}changes-"
_MAGIC: Final = b""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[QueueChange]).decode


def is_attributed(record: Record) -> bool:
    """Whether a record is a change of a queue that names who made it."""
    return type(record) is QueueChange and record.who is not None


def name_of(segment: TailSegment) -> str:
    """Where the changes of a segment are kept once it is sealed."""
    return f"{_PREFIX}{segment.first.number:020d}"


def names(listed: Iterable[str]) -> list[str]:
    return sorted(name for name in listed if name.startswith(_PREFIX) and not name.endswith(".tmp"))


def write(disk: Disk, segment: TailSegment, changes: Sequence[QueueChange]) -> None:
    disk.write_atomic(name_of(segment), checked.pack(_MAGIC, _encode(changes)))


def read(disk: Disk, name: str) -> list[QueueChange]:
    """The changes in a file; `StorageError` if it is damaged."""
    data = disk.read(name)
    try:
        return _decode(checked.unpack(_MAGIC, data))
    except ValueError as error:
        raise StorageError(f"{name} is damaged: who changed queues at that time cannot be read any more") from error


def readable(disk: Disk, listed: Iterable[str]) -> Iterator[QueueChange]:
    """The changes of all these files, in order. Damaged files are skipped; `remuda check` reports them."""
    for name in names(listed):
        with contextlib.suppress(StorageError, FileNotFoundError):
            yield from read(disk, name)


def forgotten(log: EventLog, offset: int) -> list[QueueChange]:
    """The changes by which a message was forgotten as a dead letter."""
    return [
        change
        for change in log.changes()
        if change.action == FORGOTTEN and change.first <= offset < change.first + change.count
    ]
