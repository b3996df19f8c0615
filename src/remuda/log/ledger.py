"""Which offsets and positions retention has removed: a file beside the tail, so that what somebody else removed is
missed.

It is begun with the first checkpoint: before, all of the log is in the tail, which tells by itself what is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import google_crc32c
import msgspec

from remuda.log.checkpoint import Mark
from remuda.log.disk import Disk
from remuda.log.segments import EVENTS_TABLE, MESSAGES_TABLE, Files
from remuda.model.errors import StorageError

NAME: Final = "tail/collected"
_HEAD: Final = struct.Struct("<4sI")
"""The magic, and the checksum of the rest."""
_MAGIC: Final = b"RMDL"

Span = tuple[int, int]
"""The first number, and the one after the last."""


class Missed(msgspec.Struct, frozen=True, array_like=True):
    """Events that no file holds and that were not collected, and the offset that the log had reached when that was
    found: they tell of messages before it."""

    first: int
    stop: int
    before: int


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    """What was collected, in order and as few spans as possible."""

    messages: tuple[Span, ...] = ()
    events: tuple[Span, ...] = ()
    missed: tuple[Missed, ...] = ()

    def noting(self, messages: Iterable[Span] = (), events: Iterable[Span] = ()) -> Ledger:
        """With more that was collected."""
        return msgspec.structs.replace(
            self, messages=merged([*self.messages, *messages]), events=merged([*self.events, *events])
        )


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ledger).decode


def write(disk: Disk, ledger: Ledger) -> None:
    content = _encode(ledger)
    disk.write_atomic(NAME, _HEAD.pack(_MAGIC, google_crc32c.value(content)) + content)


def read(disk: Disk, mark: Mark | None = None) -> Ledger | None:
    """What was noted; None where nothing was yet. Raises `StorageError` where it cannot be read, or is missing although
    the newest checkpoint's `mark` says that it was there."""
    if mark is not None and not mark.ledger:
        return None  # an earlier version had the log since, which collects without a note
    try:
        data = disk.read(NAME)
    except FileNotFoundError:
        if mark is not None:
            raise StorageError(_lost("missing")) from None
        return None
    content = data[_HEAD.size :]
    try:
        if _HEAD.unpack_from(data) != (_MAGIC, google_crc32c.value(content)):
            raise ValueError("it does not match its checksum")
        return _decode(content)
    except (struct.error, ValueError) as error:
        raise StorageError(_lost("damaged")) from error


def _lost(what: str) -> str:
    return f"{NAME} is {what}: nothing tells which files were collected, and which of them somebody removed"


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order, those that touch or overlap as one."""
    joined: list[Span] = []
    for first, stop in sorted(spans):
        if first >= stop:
            continue
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((first, stop))
    return tuple(joined)


def without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What of some spans is in none of the others."""
    left: list[Span] = []
    covered = merged(others)
    at = 0
    for first, stop in merged(spans):
        while at and covered[at - 1][1] > first:
            at -= 1  # one that reaches from the span before into this one
        while at < len(covered) and covered[at][0] < stop:
            start, end = covered[at]
            if start > first:
                left.append((first, start))
            first = max(first, end)
            at += 1
        if first < stop:
            left.append((first, stop))
    return left


def both(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What of some spans is in the others too."""
    spans = list(spans)
    return without(spans, without(spans, others))


def uncovered(files: Files, table: str, end: int) -> list[Span]:
    """The numbers before `end` of which no file says that it holds them."""
    if table == MESSAGES_TABLE:
        sealed = files.messages
        tail = [(one.first.offset, end if one.end is None else one.end.offset) for one in files.tail]
    else:
        assert table == EVENTS_TABLE
        sealed = files.events
        tail = [(one.first.position, end if one.end is None else one.end.position) for one in files.tail]
    return without([(0, end)], [*((file.first, file.last + 1) for file in sealed), *tail])
