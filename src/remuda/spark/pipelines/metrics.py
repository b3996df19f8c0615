"""Metrics: what queues did and how long it took, from lives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.errors import InvalidOption
from remuda.model.life import PARKED
from remuda.model.state import State

PERCENTILES: Final = (0.5, 0.95, 0.99)
_WINDOW: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(second|minute|hour|day)s?\s*", re.ASCII)
_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_SHORTEST: Final = 0.001
_LONGEST: Final = 36_525 * 86400
COUNTS: Final = ("published", "succeeded", "retried", "dead", "moved", "unchanged", "waiting")

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
        .withColumn("rate", F.col("published") / F.lit(window_seconds(window)))
    )


def window_start(window: str) -> Column:
    """When the window began in which a message was published."""
    return F.window("created", f"{_micros(window)} microseconds").start


def spans(starts: Sequence[int], window: str, most: int = 8) -> list[tuple[int, int]]:
    """Windows that begin at these times, in order, as few spans of time: from one time to before another (in µs)."""
    length = _micros(window)
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
    others = [name for name in new.columns if name not in (*COUNTS, "start", "queue", "date")]
    both = _paired(old, "old", others).join(_paired(new, "new", others), ["_start", "_queue"], "full")
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
    for name in ("start", "queue", *(["date"] if "date" in new.columns else [])):
        found[name] = F.coalesce(f"new.{name}", f"old.{name}")
    return both.select(*(found[name].alias(name) for name in new.columns))


def _paired(windows: DataFrame, side: str, others: Sequence[str]) -> DataFrame:
    """Windows as one column, beside what they are found by; the one of no queue is found too."""
    names = [name for name in windows.columns if name in (*COUNTS, *others, "start", "queue", "date")]
    nowhere = F.struct(F.col("queue").isNull().alias("none"), F.coalesce("queue", F.lit("")).alias("name"))
    return windows.select(F.col("start").alias("_start"), nowhere.alias("_queue"), F.struct(*names).alias(side))


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


def window_seconds(window: str) -> float:
    """Seconds of a window such as `1 minute`."""
    match = _WINDOW.fullmatch(window)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidOption(
            "a window is a number of seconds, minutes, hours or days, such as '5 minutes', a millisecond at least and "
            f"100 years at most, not {window!r}"
        )
    return seconds


def _micros(window: str) -> int:
    return round(window_seconds(window) * 1_000_000)
