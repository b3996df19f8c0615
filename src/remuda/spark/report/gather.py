"""Gathering the figures: Spark aggregates lives, and only what a report shows comes here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.state import State
from remuda.spark.pipelines.metrics import COUNTS, dead_reasons, funnel, metrics
from remuda.spark.report import figures, windows
from remuda.spark.report.figures import Figures, QueueReport, Reason, Report, Step, Times
from remuda.spark.report.limits import MOST_ATTEMPTS, MOST_QUEUES, MOST_REASONS, REASONS_PER_QUEUE
from remuda.spark.report.wish import Tell, Wish, empty

_ALL_TIME: Final = "36525 days"
"""Windows are counted from 1970, so that this one holds everything until 2243."""
_NEEDED: Final = (
    "offset", "queue", "name", "state", "success", "archived", "created", "consumed", "failed", "attempts",
    "reason", "duration", "moved_to",
)  # fmt: skip


def gather(lives: DataFrame, wish: Wish, tell: Tell) -> Report:
    """The figures of these lives, of the queues that were asked for."""
    wanted = lives.where(F.col("queue").isin(*wish.queues) | F.col("queue").isNull()) if wish.queues else lives
    kept = wanted.select(*_NEEDED).persist()
    try:
        chosen = kept.transform(with_fitting_names) if wish.queues else kept
        report = msgspec.structs.replace(empty(wish), **_overview(chosen))
        return report if report.first is None else _detailed(chosen, report, wish, tell)
    finally:
        kept.unpersist()


def with_fitting_names(lives: DataFrame) -> DataFrame:
    """Without those that were held back under a name which none of the others has."""
    in_queues = lives.where(F.col("queue").isNotNull())
    held_back = lives.where(F.col("queue").isNull()).join(in_queues.select("name").distinct(), "name", "left_semi")
    return in_queues.unionByName(held_back)


def with_total(lives: DataFrame, queues: Sequence[str] | None = None) -> DataFrame:
    """The lives in these queues (all by default), and every life once more under no queue: the total."""
    own = lives.where(F.col("queue").isNotNull() if queues is None else F.col("queue").isin(*queues))
    return own.unionByName(lives.withColumn("queue", F.lit(None).cast("string")))


def held_back(lives: DataFrame) -> DataFrame:
    """For each queue: how many messages were unchanged under the names of those that came to it."""
    unchanged = lives.where(F.col("state") == State.UNCHANGED.value).groupBy("name").agg(F.count("*").alias("held"))
    names = lives.where(F.col("queue").isNotNull()).select("queue", "name").distinct()
    return names.join(unchanged, "name").groupBy("queue").agg(F.sum("held").alias("held"))


def frequent_reasons(lives: DataFrame) -> DataFrame:
    """The most frequent reasons of each queue, and of all of those the most frequent."""
    by_queue = Window.partitionBy("queue").orderBy(F.desc("messages"), "reason", "state")
    ranked = dead_reasons(lives).withColumn("rank", F.row_number().over(by_queue))
    chosen = ranked.where(F.col("rank") <= REASONS_PER_QUEUE)
    return chosen.orderBy(F.desc("messages"), "queue", "reason", "state").limit(MOST_REASONS)


def _overview(lives: DataFrame) -> dict[str, Any]:
    row = lives.agg(
        F.unix_micros(F.min("created")).alias("first"),
        F.unix_micros(F.max("created")).alias("last"),
        F.count_distinct("offset").alias("messages"),
        F.count_distinct("queue").alias("queue_count"),
        F.count_if(F.col("state") == State.RETRY.value).alias("in_retry"),
    ).collect()[0]
    return {**row.asDict(), "first": _moment(row["first"]), "last": _moment(row["last"])}


def _detailed(lives: DataFrame, report: Report, wish: Wish, tell: Tell) -> Report:
    first, last = report.first or report.written, report.last or report.written
    length = windows.window_length(wish.window, first, last)
    tell("counting the queues")
    by_queue = _by_queue(lives)
    total = by_queue.pop(None, Figures())
    if total.unchanged:
        held = {row["queue"]: row["held"] for row in held_back(lives).collect()}
        by_queue = {
            name: msgspec.structs.replace(found, unchanged=held.get(name, 0)) for name, found in by_queue.items()
        }
    busiest = [name for name in by_queue if name is not None][: wish.detailed]
    watched = with_total(lives, busiest)
    tell("counting windows of time")
    over_time = _over_time(watched, length, windows.starts(length, first, last))
    tell("counting attempts")
    steps = _funnel(watched)
    tell("collecting the reasons of dead messages")
    reasons = _reasons(lives) if total.dead else []
    return msgspec.structs.replace(
        report,
        window=length / 1e6,
        figures=total,
        windows=over_time[None],
        funnel=tuple(steps[None]),
        reasons=tuple(reasons),
        queues=tuple(
            QueueReport(
                name=name,
                figures=found,
                detailed=name in busiest,
                windows=over_time.get(name, ()),
                funnel=tuple(steps.get(name, ())),
                reasons=tuple(reason for reason in reasons if reason.queue == name) if name in busiest else (),
            )
            for name, found in by_queue.items()
            if name is not None
        ),
    )


def _by_queue(lives: DataFrame) -> dict[str | None, Figures]:
    """The busiest queues, and the total under None, which as the greatest of all is never left out."""
    counted = metrics(with_total(lives), _ALL_TIME)
    busiest = counted.orderBy(F.desc("published"), F.asc_nulls_first("queue")).limit(MOST_QUEUES + 1)
    return {row["queue"]: _figures(row) for row in busiest.collect()}


def _over_time(
    watched: DataFrame, length: int, starts: Sequence[datetime]
) -> dict[str | None, tuple[figures.Window, ...]]:
    """Every window of every watched queue, also those in which nothing was published."""
    rows = metrics(watched, windows.spark_window(length)).withColumn("at", F.unix_micros("start")).collect()
    found: dict[str | None, dict[datetime, Figures]] = defaultdict(dict)
    for row in rows:
        found[row["queue"]][windows.moment(row["at"])] = _figures(row)
    nothing = Figures()
    return {
        queue: tuple(figures.Window(start, own.get(start, nothing)) for start in starts) for queue, own in found.items()
    }


def _funnel(watched: DataFrame) -> dict[str | None, list[Step]]:
    steps: dict[str | None, list[Step]] = defaultdict(list)
    rows = funnel(watched).where(F.col("attempt") <= MOST_ATTEMPTS).orderBy("attempt").collect()
    for row in rows:
        steps[row["queue"]].append(Step(row["attempt"], row["reached"], row["succeeded"]))
    return steps


def _reasons(lives: DataFrame) -> list[Reason]:
    rows = frequent_reasons(lives).withColumn("at", F.unix_micros("last")).collect()
    return [
        Reason(row["queue"], State(row["state"]), row["reason"], row["messages"], _moment(row["at"])) for row in rows
    ]


def _figures(row: Row) -> Figures:
    def times(name: str) -> Times:
        return Times(*(row[f"{name}_p{share}"] for share in (50, 95, 99)))

    counts = {name: row[name] for name in COUNTS}
    # What was held back came to no queue; `metrics` counts it as published all the same.
    counts["published"] -= counts["unchanged"]
    return Figures(**counts, wait=times("wait"), processing=times("processing"))


def _moment(time: int | None) -> datetime | None:
    return None if time is None else windows.moment(time)
