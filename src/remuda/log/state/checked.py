"""Content that shows whether it is whole: a magic that says what it is, its checksum, and itself."""

from __future__ import annotations

from typing import Final

import google_crc32c

_CRC_BYTES: Final = 4


def pack(magic: bytes, content: bytes) -> bytes:
    crc: int = google_crc32c.value(content)
    return magic + crc.to_bytes(_CRC_BYTES, "little") + content


def unpack(magic: bytes, data: bytes) -> bytes:
    """The content; raises `ValueError` where it is something else, or not as it was packed."""
    begin = len(magic) + _CRC_BYTES
    if len(data) < begin or data[: len(magic)] != magic:
        raise ValueError("it is something else")
    content = data[begin:]
    if google_crc32c.value(content) != int.from_bytes(data[len(magic) : begin], "little"):
        raise ValueError("it does not match its checksum")
    return content
