"""Retention on the lake (L6): what succeeded goes after a while, what ended without success after a longer one."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.spark.pipelines.metrics import ended


def outlived(now: datetime, success: int, dead: int) -> Column:
    """Whether a life is past its retention (microseconds). What still waits never is."""
    keep = F.when(ended(), F.lit(dead)).otherwise(F.lit(success))
    return F.col("archived") & (F.unix_micros("modified") + keep <= F.unix_micros(F.lit(now)))


def retained(rows: DataFrame, lives: DataFrame, now: datetime, success: int, dead: int) -> DataFrame:
    """The archived messages of which some life is not past its retention, or of which no life is known."""
    over = F.min(outlived(now, success, dead)).alias("over")
    gone = lives.groupBy("offset").agg(over).where("over").select("offset")
    return rows.join(gone, "offset", "left_anti")
