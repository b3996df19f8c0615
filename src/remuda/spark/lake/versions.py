"""What a table is at one moment, and a step from there to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

LOG_COLUMN: Final = "log"
"""Of a lake's tables: the name of the log that a row is of, null where it has none."""


class LakeFile(msgspec.Struct, frozen=True):
    """A file of a table, under the table's folder, and the values of its partition."""

    path: str
    partition: dict[str, str | None]
    size: int = 0
    rows: int | None = None
    """None where another program did not say."""
    modified: int = 0
    """Milliseconds since 1970."""
    bounds: dict[str, tuple[Any, Any]] = {}
    """Of some columns the least and the greatest value; None twice where all are null."""

    def may_hold(self, column: str, value: str | None) -> bool:
        """Whether some of its rows may have this value of a column, as far as is known."""
        if column in self.partition:
            return self.partition[column] == value
        least, greatest = self.bounds.get(column, (value, value))
        return least == value if least == greatest else value is not None and least <= value <= greatest


class Blocks(msgspec.Struct, frozen=True):
    """Which rows of a table are kept, and rewritten, together: neighbours by a column of whole numbers."""

    column: str
    rows: int
    """About so many numbers are in a block, or rows where numbers are spread."""
    span: int = 0
    """Numbers are spread evenly from 0 to before this; 0 where they follow each other."""

    def width(self, rows: int) -> int:
        """How many numbers a block has, in a table of so many rows: those of spread ones are halved as it grows."""
        return self.span >> max(-(-rows // self.rows) - 1, 0).bit_length() if self.span else self.rows

    def touched(self, file: LakeFile, blocks: Collection[int], width: int) -> bool:
        """Whether a file may have rows of some blocks."""
        if self.column not in file.bounds:
            return bool(blocks)
        first, last = (end // width for end in file.bounds[self.column])
        return any(first <= block <= last for block in blocks)


class StreamBatch(msgspec.Struct, frozen=True):
    """A batch of an application, which numbers its batches upwards."""

    app: str
    number: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """From one version to the next."""

    added: tuple[LakeFile, ...] = ()
    dropped: tuple[LakeFile, ...] = ()
    batch: StreamBatch | None = None
    marks: tuple[StreamBatch, ...] = ()
    """Numbers that the version notes beside it, each under a name, and which never go back."""
    data_change: bool = True
    """Whether rows come or go, and are not just in other files."""
    told: Mapping[str, str] = {}
    """What the commit says beside it."""
