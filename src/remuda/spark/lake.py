"""The lake: tables of Parquet files in Hive-style partitions, in one of two formats.

A reader uses one version of a table, so that it never sees half of a write, rewrite or deletion. Files that a version
has dropped stay for a while, for readers of an older one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
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
_STAGED: Final = "_staged_"
_ATTEMPTS: Final = 20
TIMES_IN_MICROS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Else Spark writes times as INT96, which have no time zone, and overflow after 2262 where others read them."""
_OPEN_FILES: Final = 4
_WRITING: Final = {**TIMES_IN_MICROS, "spark.sql.maxConcurrentOutputFileWriters": str(_OPEN_FILES)}
"""A task keeps some files open at once. With one, Spark would sort all rows by their partitions first."""
_ROW_GROUP_BYTES: Final = 128 * 1024 * 1024 // _OPEN_FILES
"""Each open file holds a row group in memory: together they are no more than one of Spark's usual size."""
_FEW: Final = 32
"""If a day has more partitions than this, rows are brought together by partition before they are written."""

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
    """A table with a declared schema, of which the last columns are its partitions.

    Rows that differ in one of the columns `apart` are in different files. In the Parquet format these name folders too.
    In Delta they are ordinary columns, with their value in the statistics of each file: Polars would take it from the
    names of folders, where one text means null, and long ones do not fit.
    """

    def __init__(
        self, lake: str, name: str, schema: StructType, partitions: tuple[str, ...], apart: tuple[str, ...] = ()
    ) -> None:
        self.root = Path(directory(lake)) / name
        self.schema = schema
        self.partitions = partitions
        self.apart = apart
        missing = [column for column in (*partitions, *apart) if column not in schema.fieldNames()]
        if missing:
            raise InvalidOption(f"table {name!r} has no column {missing[0]!r} to be partitioned by")
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
        """Take partitions out of the table; returns how many files that were. They stay readable for older versions."""
        gone: tuple[LakeFile, ...] = ()

        def change(newest: Version) -> Step | None:
            nonlocal gone
            gone = tuple(file for file in newest.files if concerns(file.partition))
            return Step(dropped=gone) if gone else None

        self._commit(change)
        return len(gone)

    def row_count(self, concerns: Callable[[dict[str, str | None]], bool]) -> int:
        """How many rows some partitions have, by the footers of their files."""
        paths = [str(self.root / file.path) for file in self.manifest().files if concerns(file.partition)]
        return sum(pq.read_metadata(path).num_rows for path in paths)

    def vacuum(self, older_than: float = GRACE_SECONDS) -> int:
        """Remove files that were dropped `older_than` seconds ago, and what failed jobs left; returns how many files
        had been dropped."""
        limit = time.time() - older_than
        for stage in (self.root / _STAGING).glob("*"):
            if stage.stat().st_mtime < limit:
                shutil.rmtree(stage, ignore_errors=True)
        return self._versions.vacuum(older_than)

    def _of(self, kind: str) -> Versions:
        if kind == DELTA:
            _need_delta()
            from remuda.spark.delta import DeltaLog

            return DeltaLog(self.root, self.schema, self.partitions, self.apart)
        return Manifests(self.root, (*self.partitions, *self.apart))

    def _read(self, spark: SparkSession, files: tuple[LakeFile, ...]) -> DataFrame:
        if not files:
            return spark.createDataFrame([], self.schema)
        paths = [str(self.root / file.path) for file in files]
        rows = spark.read.schema(self.schema).option("basePath", str(self.root)).parquet(*paths)
        return spelled_out(rows, files)

    def _write(self, frame: DataFrame) -> tuple[LakeFile, ...]:
        """Rows as files of the table, which no version knows yet."""
        stage = self.root / _STAGING / uuid.uuid4().hex
        folders = self._versions.folders()
        inside = [name for name in self.apart if name not in folders]
        columns = [name for name in self.schema.fieldNames() if name not in folders]
        # Columns that stay in the files partition them too, under another name.
        parting = [*folders, *(f"{_STAGED}{name}" for name in inside)]
        rows = frame.select(*columns, *folders, *(F.col(name).alias(f"{_STAGED}{name}") for name in inside))
        rows = guarded(rows, parting)
        with _settings(frame.sparkSession, _WRITING):
            writer = self._dealt_out(rows, parting).write.option("compression", "zstd")
            writer = writer.option("parquet.block.size", _ROW_GROUP_BYTES)
            writer.partitionBy(*parting).parquet(str(stage))
        files = []
        for source in sorted(stage.rglob("*.parquet")):
            parts = source.relative_to(stage).parent.parts
            place = folder(Path(*parts[: len(folders)]))
            target = place / f"{uuid.uuid4().hex}.parquet"
            (self.root / place).mkdir(parents=True, exist_ok=True)
            os.rename(source, self.root / target)
            told = values(folder(Path(*parts)))
            files.append(LakeFile(str(target), {name.removeprefix(_STAGED): value for name, value in told.items()}))
        shutil.rmtree(stage, ignore_errors=True)
        return named(files, frame)

    def _dealt_out(self, rows: DataFrame, parting: list[str]) -> DataFrame:
        """Rows spread over the tasks that write them. Each task writes those it has, without a shuffle, into files of
        its own; but where that would make very many small files, one task writes each partition.
        """
        known = {tuple(file.partition.values()) for file in self.manifest().files if file.partition}
        if any(count > _FEW for count in Counter(values[0] for values in known).values()):
            return rows.repartition(*parting)
        return rows.coalesce(int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))

    def _add(self, files: tuple[LakeFile, ...], change: Change) -> bool:
        """Commit a step that adds files; they are removed if it is not committed."""
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
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set what the writer has no options for, in sessions that were not started here too, and restore it."""
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is not None:
                spark.conf.set(name, old)


def _batch(app: str | None, number: int | None) -> Batch | None:
    return None if app is None or number is None else Batch(app, number)


def _has(version: Version, batch: Batch | None) -> bool:
    if batch is None:
        return False
    last = version.last_batch(batch.app)
    return last is not None and last >= batch.number
