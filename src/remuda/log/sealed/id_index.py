"""Which rows of a sealed file may have an id: a file beside it, of pages of hashes in order.

It is derived from the sealed file and only a hint: an offset found here is checked against the message itself. Without
it, or where a page is damaged, the ids of the sealed file are read instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import google_crc32c

from remuda.log.disk import Disk
from remuda.log.segments import SealedFile
from remuda.model.errors import StorageError

FOLDER: Final = "index/"
"""Not among the sealed files: any Parquet reader can read their folder as one table."""
SUFFIX: Final = ".ids"
_PAGE: Final = 4096
_HEAD: Final = struct.Struct("<4sII")
"""The magic, the checksum of the rest of the page, how many entries it has."""
_MAGIC: Final = b"RMDJ"
_PER_PAGE: Final = (_PAGE - _HEAD.size) // 8
_ROW_BITS: Final = 32


class DamagedIndex(Exception):
    """A page does not match its checksum."""


def name_of(file: SealedFile) -> str:
    return FOLDER + file.name.removeprefix("sealed/").removesuffix(".parquet") + SUFFIX


def entry(id: str, row: int) -> int:
    """What is noted for an id in a row, counted from the first offset of its file."""
    crc: int = google_crc32c.value(id.encode("utf-8", "surrogatepass"))
    return crc << _ROW_BITS | row


def write(disk: Disk, file: SealedFile, entries: Iterable[int]) -> None:
    ordered = sorted(entries) or [0]  # an entry without meaning: an empty file would count as damaged
    name = name_of(file)
    count = -(-len(ordered) // _PER_PAGE)
    pages = []
    for page in range(count):
        part = ordered[page * _PER_PAGE : (page + 1) * _PER_PAGE]
        content = struct.pack(f"<{len(part)}Q", *part)
        if len(part) == _PER_PAGE:
            content = content.ljust(_PAGE - _HEAD.size, b"\0")
        pages.append(_HEAD.pack(_MAGIC, _crc(_Place(name, page, count), len(part), content), len(part)) + content)
    disk.write_atomic(name, b"".join(pages))


def offsets(disk: Disk, file: SealedFile, id: str) -> list[int]:
    """The offsets of messages that may have this id, newest first; `FileNotFoundError` where there is no index."""
    name = name_of(file)
    wanted = entry(id, 0)
    pages = _count(disk, name)
    low, high = _bracket(disk, name, wanted, pages)
    while low < high:
        middle = (low + high + 1) // 2
        if _read(disk, _Place(name, middle, pages))[0] < wanted:
            low = middle
        else:
            high = middle - 1
    found: list[int] = []
    for page in range(low, pages):
        entries = _read(disk, _Place(name, page, pages))
        found += [file.first + (one & 0xFFFFFFFF) for one in entries if one >> _ROW_BITS == wanted >> _ROW_BITS]
        if entries[-1] >> _ROW_BITS > wanted >> _ROW_BITS:
            break
    return found[::-1]


def _bracket(disk: Disk, name: str, wanted: int, pages: int) -> tuple[int, int]:
    """The pages between which to look: hashes are spread evenly, so their place is nearly known."""
    guess = (wanted >> _ROW_BITS) * pages >> 32
    low, high = max(guess - 1, 0), min(guess + 1, pages - 1)
    if low and _read(disk, _Place(name, low, pages))[0] >= wanted:
        return 0, low
    if high < pages - 1 and _read(disk, _Place(name, high, pages))[0] < wanted:
        return high, pages - 1
    return low, high


def whole(disk: Disk, file: SealedFile) -> bool:
    """Whether every page is this file's and matches its checksum; also where there is no index."""
    return _state(disk, file) is not False


def usable(disk: Disk, file: SealedFile) -> bool:
    """Whether there is an index, whole, by which ids can be found."""
    return _state(disk, file) is True


def _state(disk: Disk, file: SealedFile) -> bool | None:
    """Whether all of an index is whole; None where there is none."""
    name = name_of(file)
    try:
        pages = _count(disk, name)
        for page in range(pages):
            _read(disk, _Place(name, page, pages))
    except FileNotFoundError:
        return None
    except DamagedIndex:
        return False
    except StorageError as error:
        if error.passing:
            raise
        return False
    return True


class _Place(NamedTuple):
    """A page, of how many. It is part of the checksum, so that no page passes for another's, and none goes missing."""

    name: str
    page: int
    pages: int


def _count(disk: Disk, name: str) -> int:
    pages = -(-disk.size(name) // _PAGE)
    if not pages:
        raise DamagedIndex(name)
    return pages


def _read(disk: Disk, place: _Place) -> tuple[int, ...]:
    data = disk.read(place.name, place.page * _PAGE, _PAGE)
    if len(data) < _HEAD.size:
        raise DamagedIndex(place.name)
    magic, crc, count = _HEAD.unpack_from(data)
    content = data[_HEAD.size :]
    if magic != _MAGIC or not 0 < count <= len(content) // 8 or _crc(place, count, content) != crc:
        raise DamagedIndex(place.name)
    return struct.unpack_from(f"<{count}Q", content)


def _crc(place: _Place, count: int, content: bytes) -> int:
    start = google_crc32c.value(repr(tuple(place)).encode())
    crc: int = google_crc32c.extend(google_crc32c.extend(start, count.to_bytes(4, "little")), content)
    return crc
