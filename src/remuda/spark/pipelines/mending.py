"""Mending lives: a later run corrects what an earlier one could not know, because messages had been collected."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.errors import Conflict
from remuda.spark.folding import EVENT_COLUMNS, MESSAGE_COLUMNS, within
from remuda.spark.lake import LakeTable
from remuda.spark.pipelines.lifecycle import lifecycle
from remuda.spark.port import open_log
from remuda.spark.tables import MESSAGES

COLLECTED: Final = "collected before its end was read"


def mend(spark: SparkSession, url: str, lives: LakeTable, messages: LakeTable, events: LakeTable) -> int:
    """Correct the lives that still wait in the lake although the log has collected their messages: they have ended.

    The archive may know how. Where it does not, their state becomes unknown (null) rather than wrong. Returns how many
    messages were concerned.
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
    # Persisted: it is used twice, and would be computed from the whole archive as often.
    known = _from_archive(spark, asked, messages, events).persist()
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


def _from_archive(spark: SparkSession, asked: DataFrame, messages: LakeTable, events: LakeTable) -> DataFrame:
    """The lives of these messages as far as the archive knows that they ended."""
    found = messages.read(spark).join(asked, "offset", "left_semi").select(*MESSAGE_COLUMNS).distinct()
    changes = events.read(spark).select("position", *EVENT_COLUMNS)
    return lifecycle(found, changes).where("archived and queue is not null")


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
