"""Folders of partitions: any text can be the value of one, and comes back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import md5
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.errors import Conflict
from remuda.spark.versions import LakeFile

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SIGN: Final = "\x01"
"""No printable text contains it."""
_ESCAPED: Final = "%01"
_LIKE_NULL: Final = f"^{_SIGN}*{_NULL}$"
_LONGEST: Final = 80
"""Bytes of a text that fit into a folder's name with every one of them escaped. File systems allow 255."""
_SHOWN: Final = 20
"""Characters of a longer one that its folder shows."""


def guarded(rows: DataFrame, partitions: Sequence[str]) -> DataFrame:
    """Rows whose texts can name folders: a sign precedes those that Hive's naming would take for null, and the short
    names of those that are too long."""
    texts = [name for name, kind in rows.dtypes if name in partitions and kind == "string"]
    signed = {name: _signed(F.col(name)) for name in texts}
    return rows.withColumns(signed) if signed else rows


def folder(staged: Path) -> Path:
    """The folder for staged files, where the sign of what is like null becomes an escape, which every reader undoes."""
    parts = []
    for part in staged.parts:
        name, _, value = part.partition("=")
        text = unquote(value)
        like_null = re.match(_LIKE_NULL, text) and text != _NULL
        parts.append(f"{name}=%{ord(text[1]):02X}{quote(text[2:])}" if like_null else part)
    return Path(*parts)


def values(place: Path) -> dict[str, str | None]:
    """The values in a folder's name: those of its partition, or the short names of long ones."""
    found: dict[str, str | None] = {}
    for part in place.parts:
        name, _, value = part.partition("=")
        found[name] = None if value == _NULL else unquote(value)
    return found


def named(files: Iterable[LakeFile], rows: DataFrame) -> tuple[LakeFile, ...]:
    """The files that rows were written to, with the long texts among their values in full."""
    found = tuple(files)
    shortened = {name for file in found for name, value in file.partition.items() if _is_short(value)}
    if not shortened:
        return found
    full: dict[str, str] = {}
    for name in shortened:
        long = rows.where(F.octet_length(name) > _LONGEST).select(name).distinct().collect()
        full |= {_short(row[0]): row[0] for row in long}

    def spelled(value: str | None) -> str | None:
        if value is None or not _is_short(value):
            return value
        if value not in full:
            raise Conflict("rows of a partition changed while it was written; nothing was written. Run it again")
        return full[value]

    return tuple(
        LakeFile(file.path, {name: spelled(value) for name, value in file.partition.items()}) for file in found
    )


def spelled_out(rows: DataFrame, files: Iterable[LakeFile]) -> DataFrame:
    """Rows of some files with the long texts of their partitions, whose folders have short names."""
    full: dict[str, dict[str, str]] = {}
    for file in files:
        if _ESCAPED in file.path:
            for name, value in values(Path(file.path).parent).items():
                whole = file.partition.get(name)
                if value is not None and whole is not None and value != whole:
                    full.setdefault(name, {})[value] = whole
    for name, known in full.items():
        pairs = [F.lit(text) for pair in known.items() for text in pair]
        rows = rows.withColumn(name, F.coalesce(F.create_map(*pairs)[F.col(name)], name))
    return rows


def _signed(text: Column) -> Column:
    short = F.concat(F.lit(_SIGN), F.substring(text, 1, _SHOWN), F.lit("-"), F.md5(text.cast("binary")))
    return (
        F.when(text.rlike(_LIKE_NULL), F.concat(F.lit(_SIGN), text))
        .when(F.octet_length(text) > _LONGEST, short)
        .otherwise(text)
    )


def _short(text: str) -> str:
    return f"{_SIGN}{text[:_SHOWN]}-{md5(text.encode(), usedforsecurity=False).hexdigest()}"


def _is_short(value: str | None) -> bool:
    return value is not None and value.startswith(_SIGN)
