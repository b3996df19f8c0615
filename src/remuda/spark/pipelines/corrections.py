"""Mending lives and windows: a later run corrects what an earlier one could not know, because messages had been
collected."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.errors import Conflict
from remuda.spark.lake.table import LakeTable
from remuda.spark.lake.versions import LOG_COLUMN, LakeFile
from remuda.spark.pipelines.archive import is_of, named, utc_date
from remuda.spark.pipelines.lifecycle import lifecycle
from remuda.spark.pipelines.metrics import COUNTS, fuller, metrics, spans
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.source.folding import MESSAGE_COLUMNS, within
from remuda.spark.source.spark_log import SparkLog, open_log
from remuda.spark.source.tables import MESSAGES

COLLECTED: Final = "collected before its end was read"
_MOST_SPANS: Final = 1000
"""Of windows that are looked up in the log, each for itself."""


def mend(spark: SparkSession, place: Place, lives: LakeTable, messages: LakeTable, events: LakeTable) -> int:
    """Correct the lives that still wait in the lake although the log has collected their messages: they have ended.

    The archive may know how. Where it does not, their state becomes unknown (null) rather than wrong. Returns how many
    messages were concerned.
    """
    files = lives.manifest().files
    if not files:
        return 0
    mine = is_of(place.log)
    waiting = lives.read(spark).where(~F.col("archived") & mine)
    offsets = waiting.select("offset").distinct().toArrow()["offset"].to_numpy()
    if not len(offsets):
        return 0
    gaps = open_log(place.url).gaps(MESSAGES, int(offsets.min()), int(offsets.max()) + 1)
    gone = [range(gap.start, gap.stop) for gap in gaps if not gap.damaged]
    lost = offsets[within(gone, offsets, np.ones_like(offsets))] if gone else offsets[:0]
    if not len(lost):
        return 0
    asked = spark.createDataFrame(pa.table({"offset": lost}))
    # Persisted: it is used twice, and would be computed from the whole archive as often.
    known = _from_archive(asked, *(table.read(spark).where(mine) for table in (messages, events))).persist()
    dates = {str(row[0]) for row in waiting.join(asked, "offset", "left_semi").select("date").distinct().collect()}

    def change(old: DataFrame) -> DataFrame:
        own = old.where(mine)
        stale = own.where(~F.col("archived")).join(asked, "offset", "left_semi")
        ended = known.join(stale.select("offset", "queue", "date", LOG_COLUMN), ["offset", "queue"])
        unknown = stale.join(known, ["offset", "queue"], "left_anti").transform(_without_end)
        rest = own.join(stale.select("offset", "queue"), ["offset", "queue"], "left_anti")
        return reduce(DataFrame.unionByName, (old.where(~mine), rest, ended.select(*old.columns), unknown))

    try:
        lives.rewrite(spark, lambda partition: partition["date"] in dates, change, within=_holds(place))
    except Conflict:
        return 0  # another run is at work on them; the next one looks again
    finally:
        known.unpersist()
    return len(lost)


def mend_windows(
    spark: SparkSession, place: Place, windows: LakeTable, window: str, published: Callable[[int, int], DataFrame]
) -> None:
    """Recount the lake's windows in which messages still wait although the log has collected them: they have ended.

    `published` returns the lives of the messages that the log still has, from one time to before another.
    """
    if not windows.manifest().files:
        return
    mine = is_of(place.log)
    rows = windows.read(spark).where((F.col("waiting") > 0) & mine).select(F.unix_micros("start")).distinct().collect()
    log = open_log(place.url)
    thinned = [span for span in spans(sorted(row[0] for row in rows), window, _MOST_SPANS) if _is_thinned(log, *span)]
    if not thinned:
        return
    starts = [row[0] for row in rows if any(since <= row[0] < until for since, until in thinned)]
    asked = spark.createDataFrame(pa.table({"at": pa.array(starts, pa.int64())}))
    lives = [published(*span) for span in spans(sorted(starts), window)]
    # Persisted: it is used twice, and would be computed from the log as often.
    told = named(metrics(reduce(DataFrame.unionByName, lives), window), place.log)
    counted = told.withColumn("date", utc_date("start")).persist()
    try:
        stale = _stale(windows.read(spark).where(mine), counted, asked)
        dates = {str(row[0]) for row in stale.select("date").distinct().collect()}

        def change(old: DataFrame) -> DataFrame:
            of_dates = counted.where(F.col("date").cast("string").isin(sorted(dates)))
            own = old.where(mine)
            return old.where(~mine).unionByName(fuller(own, of_dates.unionByName(_emptied(own, counted, asked))))

        if dates:
            windows.rewrite(spark, lambda partition: partition["date"] in dates, change, within=_holds(place))
    except Conflict:
        return  # another run is working on them; the next one looks again
    finally:
        counted.unpersist()


def _is_thinned(log: SparkLog, since: int, until: int) -> bool:
    """Whether the log may have collected messages that were published in this time."""
    first, stop = log.number_at(MESSAGES, since), log.number_at(MESSAGES, until)
    gaps = log.gaps(MESSAGES, max(first - 1, 0), min(stop + 1, log.end(MESSAGES)))
    return first == stop or any(not gap.damaged for gap in gaps)


def _stale(old: DataFrame, counted: DataFrame, asked: DataFrame) -> DataFrame:
    """Windows in which more messages wait than in the log."""
    stale = old.where("waiting > 0").join(asked, F.unix_micros("start") == F.col("at"), "left_semi")
    same = stale["start"].eqNullSafe(counted["start"]) & stale["queue"].eqNullSafe(counted["queue"])
    return stale.join(counted.where("waiting > 0"), same & (counted["waiting"] >= stale["waiting"]), "left_anti")


def _emptied(old: DataFrame, counted: DataFrame, asked: DataFrame) -> DataFrame:
    """Windows in which messages wait of which the log has none any more, as empty windows."""
    stale = old.where("waiting > 0").join(asked, F.unix_micros("start") == F.col("at"), "left_semi")
    same = stale["start"].eqNullSafe(counted["start"]) & stale["queue"].eqNullSafe(counted["queue"])
    gone = stale.join(counted, same, "left_anti")
    kept = ("start", "queue", LOG_COLUMN, "date")
    return gone.select(
        *(
            F.col(field.name)
            if field.name in kept
            else F.lit(0 if field.name in COUNTS else None).cast(field.dataType).alias(field.name)
            for field in counted.schema
        )
    )


def _from_archive(asked: DataFrame, messages: DataFrame, events: DataFrame) -> DataFrame:
    """The lives of these messages as far as the archive knows that they ended."""
    found = messages.join(asked, "offset", "left_semi").select(*MESSAGE_COLUMNS).distinct()
    return lifecycle(found, events).where("archived and queue is not null")


def _holds(place: Place) -> Callable[[LakeFile], bool]:
    return lambda file: file.may_hold(LOG_COLUMN, place.log)


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
