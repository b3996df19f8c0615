"""Mending lives and windows: what one run could not know, since messages were collected before it came, a later one
puts right."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.errors import Conflict
from remuda.spark.folding import EVENT_COLUMNS, MESSAGE_COLUMNS, within
from remuda.spark.lake import LakeTable
from remuda.spark.pipelines.archive import utc_date
from remuda.spark.pipelines.lifecycle import lifecycle
from remuda.spark.pipelines.metrics import COUNTS, fuller, metrics, spans
from remuda.spark.port import SparkLog, open_log
from remuda.spark.tables import MESSAGES

COLLECTED: Final = "collected before its end was read"
_MOST_SPANS: Final = 1000
"""Of windows that are looked up in the log, each for itself."""


def mend(spark: SparkSession, url: str, lives: LakeTable, messages: LakeTable, events: LakeTable) -> int:
    """Tell anew the lives of the lake that still wait there, though the log let them go: they have ended since.

    How they ended the archive may know. Where it does not, their state is unknown (null), not one that is wrong.
    """
    files = lives.manifest().files
    if not files:
        return 0
    waiting = lives.read(spark).where(~F.col("archived"))
    offsets = waiting.select("offset").distinct().toArrow()["offset"].to_numpy()
    if not len(offsets):
        return 0
    gaps = open_log(url).gaps(MESSAGES, int(offsets.min()), int(offsets.max()) + 1)
    gone = [range(gap.start, gap.stop) for gap in gaps if not gap.damaged]
    lost = offsets[within(gone, offsets, np.ones_like(offsets))] if gone else offsets[:0]
    if not len(lost):
        return 0
    asked = spark.createDataFrame(pa.table({"offset": lost}))
    # Kept, since it is asked for twice, and would be told from the whole archive as often.
    known = _told_by_archive(spark, asked, messages, events).persist()
    dates = {str(row[0]) for row in waiting.join(asked, "offset", "left_semi").select("date").distinct().collect()}

    def change(old: DataFrame) -> DataFrame:
        stale = old.where(~F.col("archived")).join(asked, "offset", "left_semi")
        ended = known.join(stale.select("offset", "queue", "date"), ["offset", "queue"])
        unknown = stale.join(known, ["offset", "queue"], "left_anti").transform(_without_end)
        rest = old.join(stale.select("offset", "queue"), ["offset", "queue"], "left_anti")
        return rest.unionByName(ended.select(*rest.columns)).unionByName(unknown.select(*rest.columns))

    try:
        lives.rewrite(spark, lambda partition: partition["date"] in dates, change)
    except Conflict:
        return 0  # another run is at work on them; the next one looks again
    finally:
        known.unpersist()
    return len(lost)


def mend_windows(
    spark: SparkSession, url: str, windows: LakeTable, window: str, published: Callable[[int, int], DataFrame]
) -> None:
    """Tell anew the windows of the lake in which messages still wait, though the log let them go: they have ended.

    `published` gives the lives that the log has of messages from one time to before another.
    """
    if not windows.manifest().files:
        return
    rows = windows.read(spark).where("waiting > 0").select(F.unix_micros("start")).distinct().collect()
    log = open_log(url)
    thinned = [span for span in spans(sorted(row[0] for row in rows), window, _MOST_SPANS) if _is_thinned(log, *span)]
    if not thinned:
        return
    starts = [row[0] for row in rows if any(since <= row[0] < until for since, until in thinned)]
    asked = spark.createDataFrame(pa.table({"at": pa.array(starts, pa.int64())}))
    lives = [published(*span) for span in spans(sorted(starts), window)]
    # Kept, since it is asked for twice, and would be told from the log as often.
    told = metrics(reduce(DataFrame.unionByName, lives), window).withColumn("date", utc_date("start")).persist()
    try:
        dates = {str(row[0]) for row in _unlike(windows.read(spark), told, asked).select("date").distinct().collect()}

        def change(old: DataFrame) -> DataFrame:
            of_dates = told.where(F.col("date").cast("string").isin(sorted(dates)))
            return fuller(old, of_dates.unionByName(_emptied(old, told, asked)))

        if dates:
            windows.rewrite(spark, lambda partition: partition["date"] in dates, change)
    except Conflict:
        return  # another run is at work on them; the next one looks again
    finally:
        told.unpersist()


def _is_thinned(log: SparkLog, since: int, until: int) -> bool:
    """Whether the log may have let go of messages that were published in a time."""
    first, stop = log.number_at(MESSAGES, since), log.number_at(MESSAGES, until)
    gaps = log.gaps(MESSAGES, max(first - 1, 0), min(stop + 1, log.end(MESSAGES)))
    return first == stop or any(not gap.damaged for gap in gaps)


def _unlike(old: DataFrame, told: DataFrame, asked: DataFrame) -> DataFrame:
    """Windows in which more waits than the log tells of."""
    stale = old.where("waiting > 0").join(asked, F.unix_micros("start") == F.col("at"), "left_semi")
    same = stale["start"].eqNullSafe(told["start"]) & stale["queue"].eqNullSafe(told["queue"])
    return stale.join(told.where("waiting > 0"), same & (told["waiting"] >= stale["waiting"]), "left_anti")


def _emptied(old: DataFrame, told: DataFrame, asked: DataFrame) -> DataFrame:
    """Windows in which something waits, and of which the log has nothing any more, with nothing in them."""
    stale = old.where("waiting > 0").join(asked, F.unix_micros("start") == F.col("at"), "left_semi")
    same = stale["start"].eqNullSafe(told["start"]) & stale["queue"].eqNullSafe(told["queue"])
    gone = stale.join(told, same, "left_anti")
    kept = ("start", "queue", "date")
    return gone.select(
        *(
            F.col(field.name)
            if field.name in kept
            else F.lit(0 if field.name in COUNTS else None).cast(field.dataType).alias(field.name)
            for field in told.schema
        )
    )


def _told_by_archive(spark: SparkSession, asked: DataFrame, messages: LakeTable, events: LakeTable) -> DataFrame:
    """The lives of these messages as far as the archive knows that they ended."""
    found = messages.read(spark).join(asked, "offset", "left_semi").select(*MESSAGE_COLUMNS).distinct()
    telling = events.read(spark).select("position", *EVENT_COLUMNS)
    return lifecycle(found, telling).where("archived and queue is not null")


def _without_end(rows: DataFrame) -> DataFrame:
    return rows.withColumns(
        {
            "state": F.lit(None).cast("string"),
            "success": F.lit(None).cast("boolean"),
            "queued": F.lit(False),
            "archived": F.lit(True),
            "reason": F.lit(COLLECTED),
        }
    )
