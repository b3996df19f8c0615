"""Metrics: what queues did and how long it took, from lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.life import PARKED
from remuda.model.state import State
from remuda.model.values.durations import parse_window
from remuda.spark.lake.versions import LOG_COLUMN

PERCENTILES: Final = (0.5, 0.95, 0.99)
COUNTS: Final = ("published", "succeeded", "retried", "dead", "moved", "unchanged", "waiting")

_PLACES: Final = ("start", "queue", LOG_COLUMN, "date")
"""What windows are found by."""

MEASURED: Final = (
    "created", "queue", "state", "success", "attempts", "archived", "moved_to", "consumed", "duration",
)  # fmt: skip
"""What is counted of a life."""


def metrics(lives: DataFrame, window: str = "1 minute") -> DataFrame:
    """For each queue and window of publishing: how many, what became of them, and how long they waited and took."""
    return (
        lives.groupBy(window_start(window).alias("start"), "queue")
        .agg(
            F.count("*").alias("published"),
            F.count_if(F.col("success")).alias("succeeded"),
            F.count_if(F.col("attempts") > 1).alias("retried"),
            F.count_if(ended()).alias("dead"),
            F.count_if(moved()).alias("moved"),
            F.count_if(F.col("state") == State.UNCHANGED.value).alias("unchanged"),
            F.count_if(~F.col("archived")).alias("waiting"),
            *_percentiles("wait", _seconds("created", "consumed")),
            *_percentiles("processing", F.col("duration") / 1e6),
        )
        .withColumn("rate", F.col("published") / F.lit(parse_window(window) / 1e6))
    )


def window_start(window: str) -> Column:
    """When the window began in which a message was published."""
    return F.window("created", f"{parse_window(window)} microseconds").start


def spans(starts: Sequence[int], window: str, most: int = 8) -> list[tuple[int, int]]:
    """Windows that begin at these times, in order, as few spans of time: from one time to before another (in µs)."""
    length = parse_window(window)
    found: list[tuple[int, int]] = []
    for start in starts:
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], start + length)
        else:
            found.append((start, start + length))
    return found if len(found) <= most else [(found[0][0], found[-1][1])]


def fuller(old: DataFrame, new: DataFrame) -> DataFrame:
    """Windows as counted now, completed by the earlier count for messages that have been collected since.

    What was collected has ended, and counts as succeeded unless that is more than can have: the collector takes those
    first. Waiting is what waits now. Percentiles are those of the count that knows more ends.
    """
    others = [name for name in new.columns if name not in (*COUNTS, *_PLACES)]
    both = _paired(old, "old").join(_paired(new, "new"), ["_start", "_queue"], "full")
    was, now = ({name: F.coalesce(f"{side}.{name}", F.lit(0)) for name in COUNTS} for side in ("old", "new"))
    gone = F.when(F.col("old").isNotNull(), F.greatest(was["published"] - now["published"], F.lit(0))).otherwise(0)
    well = F.least(gone, was["succeeded"] + was["waiting"])
    held_back = F.least(gone - well, was["unchanged"])
    sent_on = F.least(gone - well - held_back, was["moved"])
    merged = {
        "published": now["published"] + gone,
        "succeeded": now["succeeded"] + well,
        "retried": F.greatest(now["retried"], F.when(gone > 0, was["retried"]).otherwise(0)),
        "dead": now["dead"] + gone - well - held_back - sent_on,
        "moved": now["moved"] + sent_on,
        "unchanged": now["unchanged"] + held_back,
        "waiting": F.when(F.col("new").isNotNull(), now["waiting"]).otherwise(was["waiting"]),
    }
    old_only = F.col("new").isNull()
    keep = old_only | ((gone > 0) & (was["succeeded"] + was["dead"] > now["succeeded"] + now["dead"]))
    found = {name: F.when(old_only, was[name]).otherwise(value) for name, value in merged.items()}
    found |= {name: F.when(keep, F.col(f"old.{name}")).otherwise(F.col(f"new.{name}")) for name in others}
    found["rate"] = F.when(gone > 0, F.col("old.rate")).otherwise(found["rate"])
    for name in (one for one in _PLACES if one in new.columns):
        found[name] = F.coalesce(f"new.{name}", f"old.{name}")
    return both.select(*(found[name].alias(name) for name in new.columns))


def _paired(windows: DataFrame, side: str) -> DataFrame:
    """Windows as one column, beside what they are found by; the one of no queue, or of a log without name, too."""
    names = [name for name in ("queue", LOG_COLUMN) if name in windows.columns]
    known = (F.col(name).isNull().alias(f"no_{name}") for name in names)
    told = F.struct(*known, *(F.coalesce(name, F.lit("")).alias(name) for name in names))
    whole = F.struct(*windows.columns).alias(side)
    return windows.select(F.col("start").alias("_start"), told.alias("_queue"), whole)


def funnel(lives: DataFrame) -> DataFrame:
    """For each queue and number of attempts: how many messages reached it, and how many of them succeeded there."""
    reached = lives.where("attempts > 0").withColumn("attempt", F.explode(F.sequence(F.lit(1), F.col("attempts"))))
    there = F.col("attempt") == F.col("attempts")
    return reached.groupBy("queue", "attempt").agg(
        F.count("*").alias("reached"), F.count_if(there & F.col("success")).alias("succeeded")
    )


def dead_reasons(lives: DataFrame) -> DataFrame:
    """For each queue: why messages ended without success, the most frequent first."""
    reason = F.coalesce("reason", F.lit("no reason given")).alias("reason")
    counted = (
        lives.where(ended())
        .groupBy("queue", "state", reason)
        .agg(F.count("*").alias("messages"), F.max("failed").alias("last"))
    )
    return counted.orderBy(F.desc("messages"), "queue", "reason")


def ended() -> Column:
    """Whether a life ended without success."""
    return F.col("state").isin(*sorted(state.value for state in PARKED)) & ~moved()


def moved() -> Column:
    """Whether a message left this queue for another."""
    return F.col("moved_to").isNotNull()


def _seconds(start: str, end: str) -> Column:
    return (F.unix_micros(end) - F.unix_micros(start)) / 1e6


def _percentiles(name: str, value: Column) -> list[Column]:
    found = F.percentile_approx(value, list(PERCENTILES), 1000)
    return [found[at].alias(f"{name}_p{round(100 * share)}") for at, share in enumerate(PERCENTILES)]
