"""The lake: tables of Delta whose files Spark's tasks write.

A reader uses one version of a table, so that it never sees half of a write, rewrite or deletion. Files that a version
has dropped stay for a while, for readers of an older one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from remuda.model.errors import Conflict, InvalidOption
from remuda.spark.lake.delta import DeltaLog, Version
from remuda.spark.lake.files import TOLD, Reading, Writing, check_there, lake_file
from remuda.spark.lake.older import MANIFESTS, PLAIN_READERS, Manifest, newest_manifest, older_version
from remuda.spark.lake.partitions import spelled_out
from remuda.spark.lake.store import is_bucket, lake_place, open_store
from remuda.spark.lake.versions import Blocks, LakeFile, Step, StreamBatch
from remuda.spark.source.reading import parquet
from remuda.spark.source.spark_log import directory
from remuda.spark.source.tables import NUMBER

GRACE_SECONDS: Final = 24 * 3600.0
SMALL_FILE: Final = 32 << 20
"""Files below this size are put together, into files of up to the next size."""
LARGE_FILE: Final = 256 << 20
_ATTEMPTS: Final = 20
_FEW: Final = 32
"""If a day has more partitions than this, rows are brought together by partition before they are written."""

Change = Callable[[Version | Manifest], Step | None]
"""From the newest version to the next; None when there is nothing to do."""


def convert(lake: str) -> dict[str, int]:
    """Make a lake of Remuda's own older format one of Delta; returns how many files each table has. No row is copied:
    Delta's log lists the same files. What was converted before an interruption is not converted again."""
    from remuda.spark.pipelines.jobs import lake_tables

    root = Path(directory(lake))
    tables = [one for one in lake_tables(lake) if (root / one.name / MANIFESTS).is_dir()]
    done = {table.name: table.convert() for table in tables}
    for name in done:
        shutil.rmtree(root / name / MANIFESTS)
        (root / name / PLAIN_READERS).unlink(missing_ok=True)
    return done


class LakeTable:
    """A table with a declared schema, of which the last columns are its partitions.

    Rows that differ in one of the columns `apart` are in different files. They are ordinary columns, with their value
    in the statistics of each file: Polars would take it from the names of folders, where one text means null, and long
    ones do not fit. With `blocks`, a file holds rows of one block, so that a change of few rows rewrites few files.
    """

    def __init__(
        self,
        lake: str,
        name: str,
        schema: StructType,
        partitions: tuple[str, ...],
        apart: tuple[str, ...] = (),
        blocks: Blocks | None = None,
    ) -> None:
        missing = [column for column in (*partitions, *apart) if column not in schema.fieldNames()]
        if missing:
            raise InvalidOption(f"table {name!r} has no column {missing[0]!r} to be partitioned by")
        self.lake = lake_place(lake)
        self.name = name
        self.place = f"{self.lake}/{name}"
        self.schema = schema
        self.partitions = partitions
        self.apart = apart
        self.blocks = blocks
        self._log = self._of(partitions)

    def __reduce__(self) -> tuple[object, ...]:
        return LakeTable, (self.lake, self.name, self.schema, self.partitions, self.apart, self.blocks)

    @property
    def root(self) -> Path:
        """The table's folder, of a lake on a disk."""
        return Path(directory(self.place))

    def manifest(self) -> Version | Manifest:
        """The newest version: which files are the table."""
        newest = self._log.newest()
        return newest if newest.version else older_version(self.place) or newest

    def read(self, spark: SparkSession, manifest: Version | Manifest | None = None) -> DataFrame:
        """The table as it is now, or as it was. Columns that older files lack are null."""
        return self.read_files(spark, (manifest or self.manifest()).files)

    def append(
        self,
        frame: DataFrame,
        *,
        app: str | None = None,
        batch: int | None = None,
        marks: Callable[[tuple[LakeFile, ...]], tuple[StreamBatch, ...]] = lambda files: (),
    ) -> bool:
        """Add rows; those of a batch once. False if they are there already.

        `marks` sees the files before they are part of the table, and says what else the commit notes; it may refuse.
        """
        mine = _batch(app, batch)
        if _has(self.manifest(), mine):
            return False
        files = self._write(frame)
        try:
            noted = marks(files)
        except BaseException:
            self._discard(files)
            raise
        step = Step(added=files, batch=mine, marks=noted)
        return self._add(files, lambda newest: None if _has(newest, mine) else step)

    def rewrite(
        self,
        spark: SparkSession,
        concerns: Callable[[dict[str, str | None]], bool],
        change: Callable[[DataFrame], DataFrame],
        *,
        app: str | None = None,
        batch: int | None = None,
        within: Callable[[LakeFile], bool] = lambda file: True,
        marks: tuple[StreamBatch, ...] = (),
    ) -> bool:
        """Put other rows in the place of those of some partitions, or of some of their files. Raises `Conflict` if they
        changed meanwhile."""
        mine = _batch(app, batch)
        before = self.manifest()
        if _has(before, mine):
            return False
        old = tuple(file for file in before.files if concerns(file.partition) and within(file))
        gone = {file.path for file in old}
        beside = sum(self._rows(file) for file in before.files if file.path not in gone) if self.blocks else 0
        files = self._write(change(self.read_files(spark, old)), gathered=not old, beside=beside)
        strays = [file.partition for file in files if not concerns(file.partition)]
        if strays:
            self._discard(files)
            raise Conflict(
                f"table {self.name!r}: rows of {strays[0]} would be written beside those that are there, not in "
                "their place; nothing was written"
            )

        def replace(newest: Version | Manifest) -> Step | None:
            if _has(newest, mine):
                return None
            if {file.path for file in newest.files if concerns(file.partition) and within(file)} != gone:
                raise Conflict(f"table {self.name!r} was changed by another job; nothing was written. Run it again")
            return Step(added=files, dropped=old, batch=mine, marks=marks)

        return self._add(files, replace)

    def merge(
        self,
        rows: DataFrame,
        change: Callable[[DataFrame | None, DataFrame], DataFrame],
        *,
        app: str,
        batch: int,
        marks: tuple[StreamBatch, ...] = (),
    ) -> None:
        """Combine rows with those that the table has in the same blocks, and rewrite the files of these."""
        spark, files = rows.sparkSession, self.manifest().files
        assert self.blocks is not None
        blocks, folders = self.blocks, self._folders()
        if not files:
            self.rewrite(spark, lambda _: True, lambda _: change(None, rows), app=app, batch=batch, marks=marks)
            return
        # Persisted: the rows are used three times, and would be read from the log as often.
        kept = rows.persist()
        try:
            width = blocks.width(sum(map(self._rows, files)))
            asked = (*(F.col(name).cast("string") for name in (*folders, *self.apart)), _block(blocks, width))
            touched: dict[tuple[str | None, ...], dict[tuple[str | None, ...], set[int]]] = {}
            for *values, number in kept.select(*asked).distinct().collect():
                here = touched.setdefault(tuple(values[: len(folders)]), {})
                here.setdefault(tuple(values[len(folders) :]), set()).add(number)

            def place(partition: Mapping[str, str | None]) -> tuple[str | None, ...]:
                return tuple(partition[name] for name in folders)

            def within(file: LakeFile) -> bool:
                return any(
                    all(file.may_hold(*one) for one in zip(self.apart, values, strict=True))
                    and blocks.touched(file, numbers, width)
                    for values, numbers in touched[place(file.partition)].items()
                )

            self.rewrite(
                spark,
                lambda partition: place(partition) in touched,
                lambda old: change(old, kept),
                app=app,
                batch=batch,
                marks=marks,
                within=within,
            )
        finally:
            kept.unpersist()
        self.vacuum()

    def note(self, marks: tuple[StreamBatch, ...]) -> None:
        """Note numbers that the table has none of yet."""

        def change(newest: Version | Manifest) -> Step | None:
            new = tuple(one for one in marks if newest.last_batch(one.app) is None)
            return Step(marks=new) if new else None

        self._commit(change)

    def drop(self, concerns: Callable[[dict[str, str | None]], bool]) -> int:
        """Take partitions out of the table; returns how many files that were. They stay readable for older versions."""
        gone: tuple[LakeFile, ...] = ()

        def change(newest: Version | Manifest) -> Step | None:
            nonlocal gone
            gone = tuple(file for file in newest.files if concerns(file.partition))
            return Step(dropped=gone) if gone else None

        self._commit(change)
        return len(gone)

    def row_count(self, concerns: Callable[[dict[str, str | None]], bool]) -> int:
        """How many rows some partitions have, as their files say."""
        return sum(self._rows(file) for file in self.manifest().files if concerns(file.partition))

    def _rows(self, file: LakeFile) -> int:
        if file.rows is None:  # another program's file
            return int(pq.read_metadata(self.root / file.path).num_rows)
        return file.rows

    def optimize(
        self, spark: SparkSession, *, small: int = SMALL_FILE, fewest: int = 2, largest: int = LARGE_FILE
    ) -> tuple[int, int]:
        """Put small files of the same partition together, in partitions that have so many of them; returns how many
        files went and came. The rows stay the same. Raises `Conflict` if they changed meanwhile."""
        parted: dict[tuple[object, ...], list[LakeFile]] = {}
        now = self.manifest().files
        rows_now = sum(map(self._rows, now)) if self.blocks else 0
        for file in now:
            parted.setdefault(self._group(file, rows_now), []).append(file)
        sized = [[(file, file.size) for file in files if file.size < small] for files in parted.values()]
        chosen = [files for files in sized if len(files) >= fewest]
        old = tuple(file for files in chosen for file, _ in files)
        if not old:
            return 0, 0
        most = max(sum(size for _, size in files) for files in chosen)
        rows = self.read_files(spark, old)
        columns = list(dict.fromkeys((*self._folders(), *self.apart)))
        pieces = -(-most // largest)
        spread = [F.pmod(F.xxhash64(*rows.columns[:1]), F.lit(pieces))] if pieces > 1 else []
        together = rows.repartition(len(chosen) * pieces, *columns, *spread) if columns or spread else rows.coalesce(1)
        files = self._write(together, dealt_out=True)

        def replace(newest: Version | Manifest) -> Step:
            if not {file.path for file in old} <= {file.path for file in newest.files}:
                raise Conflict(f"table {self.name!r} was changed by another job; nothing was changed. Run it again")
            return Step(added=files, dropped=old, data_change=False)

        self._add(files, replace)
        return len(old), len(files)

    def convert(self) -> int:
        """Write Delta's log of the files that the newest manifest lists. Queues stay folders, as they are."""
        old = newest_manifest(self.root)
        newest = self._of(tuple(old.files[0].partition) if old.files else self.partitions).newest()
        noted = tuple(StreamBatch(app, number) for app, number in old.batches.items())
        if old.version and not newest.version and not newest.commit(Step(added=old.files, marks=noted)):
            raise Conflict(f"table {self.name!r} is being converted by another job; nothing was changed")
        return len(old.files)

    def vacuum(self, older_than: float = GRACE_SECONDS, *, full: bool = False) -> int:
        """Remove files that were dropped `older_than` seconds ago, and with `full` what failed jobs left a day ago;
        returns how many."""
        return self._log.vacuum(older_than, full=full)

    def _of(self, partitions: tuple[str, ...]) -> DeltaLog:
        # Delta took over how Spark writes a schema.
        columns = self.schema.jsonValue()["fields"]
        return DeltaLog(open_store(self.place), columns, partitions, self._bounded, always=self.apart)

    @property
    def _bounded(self) -> tuple[str, ...]:
        """The column of whole numbers, never null, whose bounds each file tells."""
        number = self.blocks.column if self.blocks else NUMBER.get(self.name)
        return () if number is None else (number,)

    def _folders(self) -> tuple[str, ...]:
        """The partitions that the table was begun with."""
        newest = self._log.newest()
        return newest.folders if newest.version else self.partitions

    def read_files(self, spark: SparkSession, files: tuple[LakeFile, ...]) -> DataFrame:
        """The rows of some files of the table."""
        if not files:
            return spark.createDataFrame([], self.schema)
        if is_bucket(self.place):  # Spark's own reader knows object stores by further jars only
            named = spark.createDataFrame([(msgspec.json.encode(file),) for file in files], TOLD)
            spread = named.repartition(min(len(files), 256))
            return spread.mapInArrow(Reading(self.place, self._arrow()).rows, self.schema)
        paths = [f"{self.place}/{file.path}" for file in files]
        rows = parquet(spark).schema(self.schema).option("basePath", self.place).parquet(*paths)
        return spelled_out(rows, files)

    def _arrow(self) -> bytes:
        return bytes(to_arrow_schema(self.schema, timezone="UTC").serialize())

    def _write(
        self, frame: DataFrame, *, dealt_out: bool = False, gathered: bool = True, beside: int = 0
    ) -> tuple[LakeFile, ...]:
        """Rows as files of the table, which no version knows yet. The rows of a block are `gathered` already, or not;
        so many rows stay `beside` them."""
        folders = self._folders()
        apart = tuple(dict.fromkeys((*folders, *self.apart)))
        known = set(frame.columns)  # what rows lack is null
        rows = frame.select(
            *(
                field.name if field.name in known else F.lit(None).cast(field.dataType).alias(field.name)
                for field in self.schema
            )
        )
        block = None
        with contextlib.ExitStack() as held:
            if self.blocks and not dealt_out:
                if self.blocks.span:  # how many there are says how large their blocks are
                    rows = rows.persist()
                    held.callback(rows.unpersist)
                width = self.blocks.width(beside + (rows.count() if self.blocks.span else 0))
                block = self.blocks.column, width
                if self.blocks.span or not gathered:
                    rows = rows.repartition(*apart, _block(self.blocks, width))
            elif not dealt_out:
                rows = self._dealt_out(rows, apart)
            writing = Writing(self.place, self._arrow(), folders, apart, self._bounded, block)
            files = tuple(map(lake_file, rows.mapInArrow(writing.files, TOLD).collect()))
        check_there(self.place, files)
        return files

    def _values(self, file: LakeFile) -> tuple[object, ...]:
        """What is the same in all rows of a file."""
        names = dict.fromkeys((*self._folders(), *self.apart))
        return tuple(file.partition.get(name) or file.bounds.get(name, (None,))[0] for name in names)

    def _group(self, file: LakeFile, rows: int) -> tuple[object, ...]:
        """What is the same in all files that may be put together: files of blocks stay as large as blocks."""
        if self.blocks is None or self.blocks.column not in file.bounds:
            return self._values(file)
        width = self.blocks.width(rows)
        return (*self._values(file), *(end // width for end in file.bounds[self.blocks.column]))

    def _dealt_out(self, rows: DataFrame, parting: tuple[str, ...]) -> DataFrame:
        """Rows spread over the tasks that write them. Each task writes those it has, without a shuffle, into files of
        its own; but where that would make very many small files, one task writes each partition.
        """
        known = {self._values(file) for file in self.manifest().files if file.partition}
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
        open_store(self.place).remove(file.path for file in files if file.path not in listed)

    def _commit(self, change: Change) -> bool:
        for _ in range(_ATTEMPTS):
            newest = self.manifest()
            step = change(newest)
            if step is None:
                return False
            if newest.commit(step):
                return True
        raise Conflict(f"table {self.name!r} is being written by too many jobs at once; run this one again")


def kept_table(lake: str, name: str) -> LakeTable | None:
    """A table as its own log describes it; None where there is none."""
    log = DeltaLog(open_store(f"{lake_place(lake)}/{name}"))
    if not log.newest().version:
        return None
    schema = StructType.fromJson(json.loads(log.metadata["schemaString"]))
    return LakeTable(lake, name, schema, tuple(log.metadata["partitionColumns"]))


def _block(blocks: Blocks, width: int) -> Column:
    return F.expr(f"`{blocks.column}` div {width}")


def _batch(app: str | None, number: int | None) -> StreamBatch | None:
    return None if app is None or number is None else StreamBatch(app, number)


def _has(version: Version | Manifest, batch: StreamBatch | None) -> bool:
    if batch is None:
        return False
    last = version.last_batch(batch.app)
    return last is not None and last >= batch.number
