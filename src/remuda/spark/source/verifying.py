"""Which sealed files Spark's own reader may be given: found out without reading their rows on the driver.

The driver reads footers, side by side. Rows are verified by those who read them: by the checksums of pages, or where a
file has none, or rows may be left out, by tasks beforehand. What was found of a file is kept: it never changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from remuda.log.disk.directory import DirectoryDisk
from remuda.log.sealed.checksums import is_whole, pages_are_checked

_THREADS: Final = 16
_FEW_BYTES: Final = 64 << 20
"""So much is verified here sooner than Spark plans a job."""

_Key = tuple[int, int, int, int]
_footers: dict[_Key, bool | None] = {}
"""Whether the pages of a file are checked as they are read; None where its footer is damaged."""
_whole: set[_Key] = set()


def sound(spark: SparkSession, root: Path, names: Sequence[str], *, leave_out: bool) -> set[str]:
    """The files that Spark's own reader fails on rather than give a wrong row; with `leave_out`, those in which nothing
    is damaged at all."""
    disk = DirectoryDisk.of_log(root)
    with ThreadPoolExecutor(_THREADS) as threads:
        keys = dict(zip(names, threads.map(partial(_key, root), names), strict=True))
        new = [name for name, key in keys.items() if key not in _footers]
        _footers.update(zip((keys[name] for name in new), threads.map(partial(_footer, disk), new), strict=True))
        asked = [
            name
            for name, key in keys.items()
            if key not in _whole and (not _footers[key] if not leave_out else True) and _footers[key] is not None
        ]
        if sum(keys[name][2] for name in asked) <= _FEW_BYTES:
            found = dict(zip(asked, threads.map(partial(is_whole, disk), asked), strict=True))
        else:
            found = _verified(spark, root, asked)
    _whole.update(keys[name] for name, whole in found.items() if whole)
    return {name for name, key in keys.items() if _footers[key] is not None and found.get(name, True)}


def _verified(spark: SparkSession, root: Path, names: Sequence[str]) -> dict[str, bool]:
    """Whether files are whole, found out by tasks."""
    place = str(root)

    def verify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        there = DirectoryDisk.of_log(place)
        for batch in batches:
            found = [is_whole(there, name) for name in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(found)], ["name", "whole"])

    rows = spark.createDataFrame([(name,) for name in names], "name string").repartition(min(len(names), 256))
    return {row["name"]: row["whole"] for row in rows.mapInArrow(verify, "name string, whole boolean").collect()}


def _key(root: Path, name: str) -> _Key:
    status = os.stat(root / name)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _footer(disk: DirectoryDisk, name: str) -> bool | None:
    try:
        return pages_are_checked(disk, name)
    except (ValueError, OSError):
        return None
