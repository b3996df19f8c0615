"""The seal of a sealed file: checksums of its row groups and of its footer, which stand before the footer.

This needs no Arrow, so that a check of whether files are whole does not load it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import google_crc32c
import msgspec

from remuda.log.disk import Disk

_MAGIC: Final = b"RMDS"
_END: Final = struct.Struct("<II4s")
"""The checksum over the list of groups and the footer, the length of the list, the magic."""
_FOOTER_END: Final = struct.Struct("<I4s")
NAME_KEY: Final = b"remuda.file"
"""The footer's key for the name that the file was sealed under: another file's rows must not pass for its own."""

PAGES_KEY: Final = b"remuda.pages"
"""The footer's key that says that pages have checksums of their own."""


class Group(msgspec.Struct, frozen=True, array_like=True):
    """Where a row group lies, and the checksum of its bytes."""

    start: int
    end: int
    crc: int


_encode = msgspec.msgpack.Encoder().encode
_decode_groups = msgspec.msgpack.Decoder(list[Group]).decode


def encode_seal(groups: list[Group], footer: bytes) -> bytes:
    """What stands before a footer."""
    listed = _encode(groups)
    return listed + _END.pack(google_crc32c.value(listed + footer), len(listed), _MAGIC)


def read_seal(read_at: Callable[[int, int], bytes], size: int) -> list[Group]:
    """The row groups of a file, read by `read_at(length, start)`; raises `ValueError` where its footer is damaged."""
    try:
        length, _ = _FOOTER_END.unpack(read_at(_FOOTER_END.size, size - _FOOTER_END.size))
        footer_start = size - _FOOTER_END.size - length
        footer = read_at(size - footer_start, footer_start)
        crc, length, magic = _END.unpack(read_at(_END.size, footer_start - _END.size))
        groups = read_at(length, footer_start - _END.size - length)
        if magic != _MAGIC or google_crc32c.value(groups + footer) != crc:
            raise ValueError("its footer does not match its checksum")
        return _decode_groups(groups)
    except (struct.error, msgspec.DecodeError) as error:
        raise ValueError(f"its footer cannot be read: {error}") from error


def pages_are_checked(disk: Disk, name: str) -> bool:
    """Whether every reader of Parquet can verify the pages of a file, going by its footer alone; raises `ValueError`
    where that is damaged, or of another file."""
    size = disk.size(name)
    read_at = _read_at(disk, name)
    read_seal(read_at, size)
    if not _bears(read_at, size, name.rpartition("/")[2].encode()):
        raise ValueError("it is another file")
    return PAGES_KEY in _footer(read_at, size)


def is_whole(disk: Disk, name: str) -> bool:
    """Whether all of a file matches its checksums, and it is the one that was sealed under this name."""
    read_at = _read_at(disk, name)
    try:
        size = disk.size(name)
        groups = read_seal(read_at, size)
        return _bears(read_at, size, name.rpartition("/")[2].encode()) and all(
            google_crc32c.value(read_at(group.end - group.start, group.start)) == group.crc for group in groups
        )
    except ValueError:
        return False


def _bears(read_at: Callable[[int, int], bytes], size: int, name: bytes) -> bool:
    """Whether an intact footer has this name, or none: keys and values are stored in it verbatim."""
    footer = _footer(read_at, size)
    return NAME_KEY not in footer or name in footer


def _footer(read_at: Callable[[int, int], bytes], size: int) -> bytes:
    length, _ = _FOOTER_END.unpack(read_at(_FOOTER_END.size, size - _FOOTER_END.size))
    return read_at(length, size - _FOOTER_END.size - length)


def _read_at(disk: Disk, name: str) -> Callable[[int, int], bytes]:
    def read_at(length: int, start: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError("it is too short")
        return disk.read(name, start, length)

    return read_at
