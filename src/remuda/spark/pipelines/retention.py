"""Retention on the lake (L6): what succeeded goes after a while, what ended without success after a longer one."""

from __future__ import annotations

from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.spark.lake.versions import LOG_COLUMN
from remuda.spark.pipelines.metrics import ended


def outlived(now: datetime, success: int, dead: int) -> Column:
    """Whether a life is past its retention (microseconds). What still waits never is."""
    keep = F.when(ended(), F.lit(dead)).otherwise(F.lit(success))
    return F.col("archived") & (F.unix_micros("modified") + keep <= F.unix_micros(F.lit(now)))


def retained(rows: DataFrame, lives: DataFrame, now: datetime, success: int, dead: int) -> DataFrame:
    """The archived messages of which some life is not past its retention, or of which no life is known."""
    over = F.min(outlived(now, success, dead)).alias("over")
    names = [name for name in (LOG_COLUMN, "offset") if name in rows.columns]
    gone = lives.groupBy(*(F.col(name).alias(f"_{name}") for name in names)).agg(over).where("over")
    same = reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"_{name}")) for name in names))
    return rows.join(gone, same, "left_anti")
