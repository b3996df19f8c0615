"""The lake: tables of Parquet files in Hive-style partitions, in one of two formats.

Whoever reads goes by one version of a table, so that no write, rewrite or deletion shows half; files that a version has
dropped stay for a while, for those who still read by an older one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict, InvalidOption
from remuda.spark.extra import SparkMissing
from remuda.spark.manifests import Manifests
from remuda.spark.partitions import folder, guarded, named, spelled_out, values
from remuda.spark.port import directory
from remuda.spark.versions import Batch, LakeFile, Step, Version, Versions

PARQUET: Final = "parquet"
DELTA: Final = "delta"
GRACE_SECONDS: Final = 24 * 3600.0
_FORMAT: Final = "_format"
_STAGING: Final = "_staging"
_ATTEMPTS: Final = 20
_TIMES: Final = "spark.sql.parquet.outputTimestampType"
TIMES_IN_MICROS: Final = {_TIMES: "TIMESTAMP_MICROS"}
"""Else Spark writes times as INT96, which tell no time zone, and overflow after 2262 where others read them."""

Change = Callable[[Version], Step | None]
"""From the newest version to the next; None when there is nothing to do."""


def lake_format(lake: str) -> str:
    """The format of a lake's tables: the one it was begun in."""
    try:
        return (Path(directory(lake)) / _FORMAT).read_text().strip()
    except FileNotFoundError:
        return PARQUET


def begin_lake(lake: str, kind: str) -> None:
    """Choose the format of a lake before its first table; it is kept there. Raises `Conflict` if it has another."""
    if kind not in (PARQUET, DELTA):
        raise InvalidOption(f"a lake's tables are {PARQUET} or {DELTA}, not {kind!r}")
    root = Path(directory(lake))
    if kind == DELTA:
        _need_delta()
    if kind != lake_format(lake):
        if (root / _FORMAT).exists() or any(root.glob("*/_manifests")):
            raise Conflict(f"the tables of {lake!r} are {lake_format(lake)}; nothing was changed. Choose another lake")
        root.mkdir(parents=True, exist_ok=True)
        temporary = root / f"{_FORMAT}-{uuid.uuid4().hex}"
        temporary.write_text(kind)
        os.rename(temporary, root / _FORMAT)


class LakeTable:
    """A table with a declared schema, of which the last columns are its partitions."""

    def __init__(self, lake: str, name: str, schema: StructType, partitions: tuple[str, ...]) -> None:
        self.root = Path(directory(lake)) / name
        self.schema = schema
        self.partitions = partitions
        missing = [column for column in partitions if column not in schema.fieldNames()]
        if missing:
            raise InvalidOption(f"table {name!r} has no column {missing[0]!r} to be parted by")
        self._versions = self._of(lake_format(lake))

    def manifest(self) -> Version:
        """The newest version: which files are the table."""
        return self._versions.newest()

    def read(self, spark: SparkSession, manifest: Version | None = None) -> DataFrame:
        """The table as it is now, or as it was. Columns that older files lack are null."""
        return self._read(spark, (manifest or self.manifest()).files)

    def append(self, frame: DataFrame, *, app: str | None = None, batch: int | None = None) -> bool:
        """Add rows; those of a batch once. False if they are there already."""
        mine = _batch(app, batch)
        if _has(self.manifest(), mine):
            return False
        files = self._write(frame)
        return self._add(files, lambda newest: None if _has(newest, mine) else Step(added=files, batch=mine))

    def rewrite(
        self,
        spark: SparkSession,
        concerns: Callable[[dict[str, str | None]], bool],
        change: Callable[[DataFrame], DataFrame],
        *,
        app: str | None = None,
        batch: int | None = None,
    ) -> bool:
        """Put other rows in the place of those of some partitions. Raises `Conflict` if they changed meanwhile."""
        mine = _batch(app, batch)
        before = self.manifest()
        if _has(before, mine):
            return False
        old = tuple(file for file in before.files if concerns(file.partition))
        files = self._write(change(self._read(spark, old)))
        strays = [file.partition for file in files if not concerns(file.partition)]
        if strays:
            self._discard(files)
            raise Conflict(
                f"table {self.root.name!r}: rows of {strays[0]} would be written beside those that are there, not in "
                "their place; nothing was written"
            )
        gone = {file.path for file in old}

        def replace(newest: Version) -> Step:
            if {file.path for file in newest.files if concerns(file.partition)} != gone:
                raise Conflict(
                    f"table {self.root.name!r} was changed by another job; nothing was written. Run it again"
                )
            return Step(added=files, dropped=old, batch=mine)

        return self._add(files, replace)

    def drop(self, concerns: Callable[[dict[str, str | None]], bool]) -> int:
        """Take partitions out of the table; how many files that were. They stay readable for older versions."""
        gone: tuple[LakeFile, ...] = ()

        def change(newest: Version) -> Step | None:
            nonlocal gone
            gone = tuple(file for file in newest.files if concerns(file.partition))
            return Step(dropped=gone) if gone else None

        self._commit(change)
        return len(gone)

    def row_count(self, concerns: Callable[[dict[str, str | None]], bool]) -> int:
        """How many rows some partitions have, told by the files' own footers."""
        paths = [str(self.root / file.path) for file in self.manifest().files if concerns(file.partition)]
        return sum(pq.read_metadata(path).num_rows for path in paths)

    def vacuum(self, older_than: float = GRACE_SECONDS) -> int:
        """Remove files that were dropped some seconds ago, and what failed jobs left; how many files were dropped."""
        limit = time.time() - older_than
        for stage in (self.root / _STAGING).glob("*"):
            if stage.stat().st_mtime < limit:
                shutil.rmtree(stage, ignore_errors=True)
        return self._versions.vacuum(older_than)

    def _of(self, kind: str) -> Versions:
        if kind == DELTA:
            _need_delta()
            from remuda.spark.delta import DeltaLog

            return DeltaLog(self.root, self.schema, self.partitions)
        return Manifests(self.root)

    def _read(self, spark: SparkSession, files: tuple[LakeFile, ...]) -> DataFrame:
        if not files:
            return spark.createDataFrame([], self.schema)
        paths = [str(self.root / file.path) for file in files]
        rows = spark.read.schema(self.schema).option("basePath", str(self.root)).parquet(*paths)
        return spelled_out(rows, files)

    def _write(self, frame: DataFrame) -> tuple[LakeFile, ...]:
        """Rows as files of the table, which no version knows yet."""
        stage = self.root / _STAGING / uuid.uuid4().hex
        columns = [name for name in self.schema.fieldNames() if name not in self.partitions]
        rows = guarded(frame.select(*columns, *self.partitions), self.partitions)
        if self.partitions:
            rows = rows.repartition(*self.partitions)
        with _times_in_micros(frame.sparkSession):
            rows.write.option("compression", "zstd").partitionBy(*self.partitions).parquet(str(stage))
        files = []
        for source in sorted(stage.rglob("*.parquet")):
            place = folder(source.relative_to(stage).parent)
            target = place / f"{uuid.uuid4().hex}.parquet"
            (self.root / place).mkdir(parents=True, exist_ok=True)
            os.rename(source, self.root / target)
            files.append(LakeFile(str(target), values(place)))
        shutil.rmtree(stage, ignore_errors=True)
        return named(files, frame)

    def _add(self, files: tuple[LakeFile, ...], change: Change) -> bool:
        """Commit a step that adds files; those that came to nothing go."""
        try:
            if self._commit(change):
                return True
        except Conflict:
            self._discard(files)
            raise
        self._discard(files)
        return False

    def _discard(self, files: tuple[LakeFile, ...]) -> None:
        # A commit may be in place although it was reported as failed: what a version lists is never removed.
        listed = {file.path for file in self.manifest().files}
        for file in files:
            if file.path not in listed:
                (self.root / file.path).unlink(missing_ok=True)

    def _commit(self, change: Change) -> bool:
        for _ in range(_ATTEMPTS):
            newest = self._versions.newest()
            step = change(newest)
            if step is None:
                return False
            if newest.commit(step):
                return True
        raise Conflict(f"table {self.root.name!r} is being written by too many jobs at once; run this one again")


def _need_delta() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise SparkMissing("Delta tables are an extra: pip install 'remuda[delta]'") from error


@contextlib.contextmanager
def _times_in_micros(spark: SparkSession) -> Iterator[None]:
    """In sessions that were not started here too: the writer knows no option for it."""
    before = spark.conf.get(_TIMES) or "INT96"
    if before == TIMES_IN_MICROS[_TIMES]:
        yield
        return
    spark.conf.set(_TIMES, TIMES_IN_MICROS[_TIMES])
    try:
        yield
    finally:
        spark.conf.set(_TIMES, before)


def _batch(app: str | None, number: int | None) -> Batch | None:
    return None if app is None or number is None else Batch(app, number)


def _has(version: Version, batch: Batch | None) -> bool:
    if batch is None:
        return False
    last = version.last_batch(batch.app)
    return last is not None and last >= batch.number
