"""The plainest Spark jobs that do the least of what the pipelines do: from Spark's Parquet to Parquet, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Plain = Callable[["DataFrame", "DataFrame", Path], None]
"""From the messages and the events of a log to files below a folder."""


def archive(messages: DataFrame, events: DataFrame, out: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    rows = messages.withColumns({"date": F.to_date("created"), "queue": F.explode_outer("queues")})
    _written(rows, out / "messages", "date", "queue")
    _written(events.withColumn("date", F.to_date("time")), out / "events", "date", "queue")


def lifecycle(messages: DataFrame, events: DataFrame, out: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    _written(_lives(messages, events).withColumn("date", F.to_date("created")), out, "date")


def history(messages: DataFrame, events: DataFrame, out: Path) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    before = F.lag("digest").over(Window.partitionBy("object", "key").orderBy("offset"))
    told = messages.where(F.col("digest").isNotNull()).withColumn("changed", ~before.eqNullSafe(F.col("digest")))
    found = told.groupBy("object", "key").agg(
        F.max_by("digest", "offset").alias("digest"),
        F.count_if("changed").alias("version"),
        F.count("*").alias("messages"),
        F.min("created").alias("first"),
        F.max("created").alias("last"),
    )
    _written(found, out)


def metrics(messages: DataFrame, events: DataFrame, out: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    wait = (F.unix_micros("consumed") - F.unix_micros("created")) / 1e6
    took = (F.unix_micros("processed") - F.unix_micros("consumed")) / 1e6
    found = (
        _lives(messages, events)
        .groupBy(F.window("created", "1 minute").start.alias("start"), "queue")
        .agg(
            F.count("*").alias("published"),
            F.count_if(F.col("state").isin("S", "X")).alias("succeeded"),
            F.count_if(F.col("attempts") > 1).alias("retried"),
            F.count_if(F.col("state") == "E").alias("dead"),
            F.percentile_approx(wait, [0.5, 0.95, 0.99], 1000).alias("wait"),
            F.percentile_approx(took, [0.5, 0.95, 0.99], 1000).alias("took"),
        )
    )
    _written(found, out)


JOBS: Final[dict[str, Plain]] = {
    "archive": archive, "lifecycle": lifecycle, "history": history, "metrics": metrics,
}  # fmt: skip


def _lives(messages: DataFrame, events: DataFrame) -> DataFrame:
    """A row for each message and queue: its last state, its first times, its attempts and why it ended."""
    from pyspark.sql import functions as F  # noqa: N812

    steps = events.withColumn("offset", F.explode(F.sequence(F.col("first"), F.expr("first + count - 1"))))
    lives = steps.groupBy("offset", "queue").agg(
        F.max_by("state", "position").alias("state"),
        F.max("time").alias("modified"),
        F.min(F.when(F.col("state") == "F", F.col("time"))).alias("consumed"),
        F.min(F.when(F.col("state").isin("S", "E", "R"), F.col("time"))).alias("processed"),
        F.min(F.when(F.col("state") == "X", F.col("time"))).alias("completed"),
        F.max("attempt").alias("attempts"),
        F.max_by("reason", "position").alias("reason"),
    )
    own = messages.select("offset", "created", "id", "name", "object", "key", F.explode_outer("queues").alias("queue"))
    return own.join(lives, ["offset", "queue"], "left")


def _written(rows: DataFrame, place: Path, *folders: str) -> None:
    rows.write.option("compression", "zstd").partitionBy(*folders).parquet(str(place))
