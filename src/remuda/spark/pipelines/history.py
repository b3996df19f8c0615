"""History: what was last said of each object and key, and the rule that repetition is no news (T3), at scale."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def history(messages: DataFrame) -> DataFrame:
    """The last hash of each object and key, how often it changed, and when. As the compacter remembers it."""
    told = messages.where(F.col("digest").isNotNull()).transform(with_repetitions, "digest", "offset")
    return told.groupBy("object", "key").agg(
        F.max_by("digest", "offset").alias("digest"),
        F.count_if(~F.col("repeats")).alias("version"),
        F.count("*").alias("messages"),
        F.max("offset").alias("offset"),
        F.min("created").alias("first"),
        F.max("created").alias("last"),
    )


def with_repetitions(rows: DataFrame, hashed: str, order: str) -> DataFrame:
    """Whether each row says the same as the one before it of its object and key; never without both."""
    known = F.col("object").isNotNull() & F.col("key").isNotNull()
    # Rows without object or key would all be sorted by one task: they are spread instead.
    spread = F.when(~known, F.xxhash64(order))
    before = F.lag(hashed).over(Window.partitionBy("object", "key", spread).orderBy(order))
    return rows.withColumn("repeats", known & F.coalesce(before == F.col(hashed), F.lit(False)))


def compacts(enabled: bool = True, objects: Mapping[str, bool] | None = None) -> Column:
    """Whether repetitions of a row's object are held back: by default, or as its object is set."""
    chosen = F.lit(enabled)
    for name, on in sorted((objects or {}).items()):
        chosen = F.when(F.col("object") == name, F.lit(on)).otherwise(chosen)
    return chosen
