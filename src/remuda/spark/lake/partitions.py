"""Folders of partitions: any text can be the value of one, and comes back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from remuda.spark.lake.versions import LakeFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_SIGN: Final = "\x01"
"""No printable text contains it."""
_ESCAPED: Final = "%01"
_LIKE_NULL: Final = re.compile(f"{_SIGN}*{_NULL}")
_SPECIAL: Final = frozenset("\"#%'*/:=?\\{}[]^\x7f")
"""What Spark escapes in the name of a folder, and undoes."""
_LONGEST: Final = 80
"""Bytes of a text that fit into a folder's name with every one of them escaped. File systems allow 255."""
_SHOWN: Final = 20
"""Characters of a longer one that its folder shows."""


def folder(partition: Mapping[str, str | None], names: Sequence[str]) -> str:
    """The folder of a partition, named as Hive's are; empty where nothing parts the table."""
    return "/".join(f"{name}={_named(partition[name])}" for name in names)


def spelled_out(rows: DataFrame, files: Iterable[LakeFile]) -> DataFrame:
    """Rows of some files with the long texts of their partitions, whose folders have short names."""
    from pyspark.sql import functions as F  # noqa: N812

    full: dict[str, dict[str, str]] = {}
    for file in files:
        if _ESCAPED in file.path:
            for part in PurePosixPath(file.path).parent.parts:
                name, _, value = part.partition("=")
                whole = file.partition.get(name)
                if whole is not None and value != _NULL and unquote(value) != whole:
                    full.setdefault(name, {})[unquote(value)] = whole
    for name, known in full.items():
        pairs = [F.lit(text) for pair in known.items() for text in pair]
        rows = rows.withColumn(name, F.coalesce(F.create_map(*pairs)[F.col(name)], name))
    return rows


def _named(text: str | None) -> str:
    if text is None:
        return _NULL
    if len(text.encode()) > _LONGEST:
        text = f"{_SIGN}{text[:_SHOWN]}-{md5(text.encode(), usedforsecurity=False).hexdigest()}"
    escaped = "".join(f"%{ord(one):02X}" if one in _SPECIAL or one < " " else one for one in text)
    # What is like null, or empty, is told from it by an escape that every reader undoes.
    return f"%{ord(escaped[0]):02X}{escaped[1:]}" if _LIKE_NULL.fullmatch(text) and escaped[0] != "%" else escaped
