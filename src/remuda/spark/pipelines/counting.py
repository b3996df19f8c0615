"""Counting: a batch is added to the archive once its rows are as many as the log has, or what it lacks is noted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from remuda.log.sealed.sealed_table import runs_of
from remuda.model.errors import StorageError
from remuda.spark.checkpoints import offsets, span
from remuda.spark.lake.coverage import GAPS, Lack, as_lacks, reached_by, readable
from remuda.spark.lake.table import LakeTable
from remuda.spark.lake.versions import LakeFile, StreamBatch
from remuda.spark.pipelines.archive import is_of
from remuda.spark.pipelines.streaming_queries import Place, told_as
from remuda.spark.source.directory_log import EmbeddedLog
from remuda.spark.source.losses import Gap, losses, report, subtracted
from remuda.spark.source.read_options import truth
from remuda.spark.source.spark_log import open_log, shown
from remuda.spark.source.stream_reader import gone_at
from remuda.spark.source.tables import NUMBER

UNKNOWN: Final = "not in the archive"


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """What a micro-batch of the archive must hold: the rows of a table between two numbers."""

    spark: SparkSession
    place: Place
    table: str
    target: LakeTable
    app: str
    batch: int
    checkpoint: Path

    def marks(self, files: tuple[LakeFile, ...], rows: Callable[[], int]) -> tuple[StreamBatch, ...]:
        """What the commit that adds these files notes: how far the archive then holds the log.

        Raises `DataLost` where rows are missing and must not be, and `StorageError` where the log has rows that the
        batch lacks.
        """
        url, log = self.place.url, open_log(self.place.url)
        name, known = NUMBER[self.table], told_as(self.place)
        numbers = span(self.checkpoint, self.batch, name)
        noted = () if known is None else (StreamBatch(reached_by(known, self.table), numbers.stop),)
        if not isinstance(log, EmbeddedLog):
            return noted  # the entries of a stream do not say how many rows there are
        gaps = log.gaps(self.table, numbers.start, numbers.stop)
        if rows() + sum(map(len, gaps)) != len(numbers):
            gaps = self._missing(log, numbers, self.target.read_files(self.spark, files))
        lost = losses(gaps, gone_at(offsets(self.checkpoint, self.batch), name))
        for gap in lost:
            if (there := readable(log, self.table, gap.start, gap.stop)) is not None:
                raise StorageError(
                    f"tasks handed over {rows():,} rows of {name} {numbers.start} to {numbers.stop - 1}, without "
                    f"{name} {there}, which the log at {shown(url)!r} holds; nothing was stored. Do all hosts "
                    "that run tasks see this log, and all of it? Run the archive again"
                )
        report(shown(url), f"{name}s", lost, fail=truth(self.place.options, "failOnDataLoss", default=True))
        lacking = [*self._before(log, numbers.start), *as_lacks(log.identity, self.table, lost)]
        if lacking:
            note(self.spark, self.place.lake, lacking, f"{self.app}-{self.table}", self.batch)
        return noted

    def _before(self, log: EmbeddedLog, start: int) -> list[Lack]:
        """What the archive lacks of the rows before this batch, where no earlier one has counted them."""
        newest = self.target.manifest()
        counted = newest.last_batch(reached_by(log.identity, self.table)) or 0
        if counted >= start:
            return []
        there = self.target.read(self.spark, newest).where(is_of(self.place.log))
        lost = losses(self._missing(log, range(counted, start), there), None)
        return [one._replace(cause=UNKNOWN) for one in as_lacks(log.identity, self.table, lost)]

    def _missing(self, log: EmbeddedLog, numbers: range, rows: DataFrame) -> list[Gap]:
        number = F.col(NUMBER[self.table])
        wanted = rows.select(number).where((number >= numbers.start) & (number < numbers.stop)).distinct()
        found = wanted.toArrow().column(0).combine_chunks()
        there = runs_of(found.take(pa.compute.sort_indices(found)))
        return [gap for one in subtracted(numbers, there) for gap in log.causes(self.table, one)]


def gaps_table(lake: str) -> LakeTable:
    schema = StructType().add("log", StringType()).add("table", StringType())
    schema = schema.add("start", LongType()).add("stop", LongType()).add("cause", StringType())
    return LakeTable(lake, GAPS, schema.add("noted", TimestampType()), ())


def note(spark: SparkSession, lake: str, lacking: Sequence[Lack], app: str, batch: int) -> None:
    """Add to the lake's table of gaps, once for each batch."""
    rows = spark.createDataFrame([tuple(one) for one in lacking], list(Lack._fields))
    gaps_table(lake).append(rows.withColumn("noted", F.current_timestamp()), app=app, batch=batch)
