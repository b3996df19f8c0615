"""Frames: `[marker 8][number u64][length u32][crc32c u32][kind u8][payload]`.

The marker is random per file. No body can hold a frame that looks valid, because nobody who writes a body knows it.
The number counts all frames of the log, so that a lost one is noticed whatever it held.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import google_crc32c

HEADER: Final = struct.Struct("<8sQIIB")
FRAME_BYTES: Final = HEADER.size
"""What a frame takes beside its payload."""
NUMBERED: Final = struct.Struct("<QB")
MARKER_BYTES: Final = 8
MAX_PAYLOAD: Final = (1 << 32) - 1
WINDOW_BYTES: Final = 4 * 1024 * 1024
_FIRST_WINDOW: Final = WINDOW_BYTES // 16
"""Smaller, because a reader that follows a log wants the little that is new."""
_BLOCK: Final = 64 * 1024
_SHORT: Final = 1024
_ZEROS: Final = bytes(_BLOCK)

_crc: Final = google_crc32c.value
# A file written to be hostile could hold many markers that each ask for a checksum over all the rest.
_CHECKS_PER_BYTE: Final = 8


class Frame(NamedTuple):
    """A frame whose checksum holds, and where it lies."""

    start: int
    end: int
    number: int
    kind: int
    payload: bytes


class Unreadable(NamedTuple):
    """Bytes that are not frames, with valid frames after them."""

    start: int
    end: int


class Torn(NamedTuple):
    """Bytes that are not frames, up to the end of what was written."""

    start: int
    end: int


def new_marker() -> bytes:
    """A marker without zero bytes, so that it never begins in a preallocated rest."""
    return bytes(secrets.choice(range(1, 256)) for _ in range(MARKER_BYTES))


def checksum(number: int, kind: int, payload: bytes) -> int:
    head = NUMBERED.pack(number, kind)
    # A short payload is copied in less time than another call takes.
    short = len(payload) < _SHORT
    crc: int = _crc(head + payload) if short else google_crc32c.extend(_crc(head), payload)
    return crc


def pack_header(marker: bytes, number: int, kind: int, payload: bytes) -> bytes:
    """What stands before the payload."""
    return HEADER.pack(marker, number, len(payload), checksum(number, kind, payload), kind)


Item = Frame | Unreadable | Torn


def scan(data: bytes, marker: bytes, base: int = 0) -> Iterator[Item]:
    """The frames of `data` and the damage between them. Bytes count from `base`; an all-zero rest is a clean end."""
    written = _written(data)
    budget = _CHECKS_PER_BYTE * len(data)
    position = 0
    while position < written:
        frame = frame_at(data, marker, position, base)
        if frame is not None:
            yield frame
            position = frame.end - base
            continue
        candidate = position
        while frame is None:
            candidate = data.find(marker, candidate + 1)
            if candidate < 0 or budget < 0:
                yield Torn(position + base, written + base)
                return
            budget -= _claimed_length(data, candidate)
            frame = frame_at(data, marker, candidate, base)
        yield Unreadable(position + base, candidate + base)
        position = candidate


def _written(data: bytes) -> int:
    """Where the all-zero rest begins. Whole blocks are compared: stripping megabytes byte by byte takes far longer."""
    end = len(data)
    while end >= _BLOCK and data[end - _BLOCK : end] == _ZEROS:
        end -= _BLOCK
    start = max(end - _BLOCK, 0)
    return start + len(data[start:end].rstrip(b"\0"))


def scan_file(read: Callable[[int, int], bytes], marker: bytes, start: int, end: int) -> Iterator[Item]:
    """As `scan`, through a window that moves over bytes `start` to `end`; `read` takes a place and a length."""
    window = min(_FIRST_WINDOW, WINDOW_BYTES)
    while start < end:
        data = read(start, min(window, end - start))
        last = len(data) < window or start + len(data) >= end
        done = start
        for item in scan(data, marker, start):
            if type(item) is Torn and not last:
                break
            yield item
            done = item.end
        if last:
            return
        # What is left may be a frame or a hole that reaches beyond the window.
        window = min(2 * window, WINDOW_BYTES) if done > start else 2 * window
        start = done


def frame_at(data: bytes, marker: bytes, position: int, base: int = 0) -> Frame | None:
    """The frame that begins here, if it is whole and its checksum holds."""
    body = position + HEADER.size
    if body > len(data):
        return None
    found, number, length, crc, kind = HEADER.unpack_from(data, position)
    end = body + length
    if found != marker or end > len(data):
        return None
    payload = data[body:end]
    if checksum(number, kind, payload) != crc:
        return None
    return Frame(position + base, end + base, number, kind, payload)


def _claimed_length(data: bytes, position: int) -> int:
    if position + HEADER.size > len(data):
        return 0
    length: int = HEADER.unpack_from(data, position)[2]
    return length if position + HEADER.size + length <= len(data) else 0
