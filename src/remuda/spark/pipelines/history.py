"""History: the last content of each object and key, and the rule that a repetition is unchanged (T3), at scale."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from remuda.spark.lake.versions import LOG_COLUMN


def history(messages: DataFrame, before: DataFrame | None = None) -> DataFrame:
    """The last hash of each object and key, how often it changed, and when. As the compacter remembers it.

    It continues from an earlier history, `before`; messages that were counted there are not counted again.
    """
    counted = messages.where(F.col("digest").isNotNull()).select(
        *_keys(messages), "digest", F.lit(1).cast("long").alias("version"), F.lit(1).cast("long").alias("messages"),
        "offset", F.col("created").alias("first"), F.col("created").alias("last"),
    )  # fmt: skip
    if before is not None:
        counted = before.select(*counted.columns).unionByName(_newer(counted, before))
    return (
        counted.transform(with_repetitions, "digest", "offset")
        .groupBy(*_keys(counted))
        .agg(
            F.max_by("digest", "offset").alias("digest"),
            F.sum(F.when(F.col("repeats"), 0).otherwise(F.col("version"))).alias("version"),
            F.sum("messages").alias("messages"),
            F.max("offset").alias("offset"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
        )
    )


def _newer(rows: DataFrame, before: DataFrame) -> DataFrame:
    """The rows after those already counted for their object and key: messages are counted in the order of the log."""
    same = reduce(Column.__and__, (rows[name].eqNullSafe(before[name]) for name in _keys(rows)))
    return rows.join(before, same & (rows["offset"] <= before["offset"]), "left_anti")


def with_repetitions(rows: DataFrame, content: str, order: str, parts: int | None = None) -> DataFrame:
    """Whether each row has the same content as the one before it of its object and key; never without both.

    Rows are sorted in so many parts, or in as many as Spark makes by itself.
    """
    known = F.col("object").isNotNull() & F.col("key").isNotNull()
    # Rows without object or key would all be sorted by one task: they are spread instead.
    spread = rows.withColumn("_spread", F.when(~known, F.xxhash64(order)))
    parted = spread if parts is None else spread.repartition(parts, "object", "key", "_spread")
    before = F.lag(content).over(Window.partitionBy(*_keys(rows), "_spread").orderBy(order))
    return parted.withColumn("repeats", known & F.coalesce(before == F.col(content), F.lit(False))).drop("_spread")


def _keys(rows: DataFrame) -> list[str]:
    """By what contents are told apart: in a lake of several logs also by these."""
    return [name for name in (LOG_COLUMN, "object", "key") if name in rows.columns]


def compacts(enabled: bool = True, objects: Mapping[str, bool] | None = None) -> Column:
    """Whether repetitions of a row's object are held back: by default, or as its object is set."""
    chosen = F.lit(enabled)
    for name, on in sorted((objects or {}).items()):
        chosen = F.when(F.col("object") == name, F.lit(on)).otherwise(chosen)
    return chosen
