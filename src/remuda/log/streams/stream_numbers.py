"""Numbers of rows in a stream, and the references by which events name their messages."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from remuda.model.ids import STEP, time_of

STREAM: Final = "remuda.log"
"""The stream of a virtual host."""
ROW_BITS: Final = 16
ROWS: Final = 1 << ROW_BITS
"""Rows of one kind in an entry, at most."""
GONE: Final = -1
"""In place of the offset of a message that is not in the stream, or not any more."""
HASHED: Final = 1 << 61
"""From here on, and below twice as much, a number is the hash of an id. Snowflakes are below it for seventeen years."""
_SMALL: Final = 1 << 45
"""Below, a number is somebody's own count rather than a snowflake: it would be of the first hours of their era."""
_DIGITS: Final = len(str(HASHED))


def first_of(entry: int) -> int:
    """The number of an entry's first row."""
    return entry << ROW_BITS


def entry_of(number: int) -> int:
    """The entry of a row."""
    return number >> ROW_BITS


def entry_after(number: int) -> int:
    """The first entry all of whose rows come at `number` or later."""
    return (number + ROWS - 1) >> ROW_BITS


def reference(id: str) -> int:
    """The number that stands for a message's id: a snowflake itself, of any other text a hash beyond all snowflakes."""
    if id.isascii() and id.isdigit() and len(id) <= _DIGITS and (id[0] != "0" or id == "0"):
        number = int(id)
        if number < HASHED:
            return number
    digest = blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return HASHED | (int.from_bytes(digest, "big") & (HASHED - 1))


def references(ids: Sequence[str]) -> list[int]:
    """The numbers that stand for ids, which cost less where all are snowflakes of one length."""
    length = len(ids[0]) if ids else 0
    if 0 < length < _DIGITS and set(map(len, ids)) == {length}:
        joined = "".join(ids)
        if joined.isascii() and joined.isdigit() and "0" not in joined[::length]:
            return list(map(int, ids))
    return list(map(reference, ids))


def neighbours(first: int, count: int) -> range:
    """The references of messages whose ids were given together."""
    return range(first, first + count * STEP, STEP)


def creation_time(reference: int) -> int | None:
    """When a message was made (microseconds), if its id is a snowflake."""
    return time_of(reference) if _SMALL < reference < HASHED else None
