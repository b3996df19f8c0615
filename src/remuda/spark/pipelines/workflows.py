"""Runs of workflows and their steps, from the log (G4)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.notes import NOTE, NUMBER, OFFSET, QUEUE

EPOCH: Final = 1 << 54
"""A run that was restarted numbers its steps anew: each time by so much more."""
STEPS: Final = 1 << 25
"""Below this, a number is that of a step; others belong to one, or to the run as a whole."""
_QUEUES: Final = "workflow."
_SIGNALS: Final = ".signals"


def steps(messages: DataFrame) -> DataFrame:
    """What was recorded of runs, one row for each record: steps, and what belongs to them."""
    number = _header(NUMBER).cast("long")
    started = (_header("remuda-started").cast("long") / 1_000_000).cast("timestamp")
    return messages.where(F.col("name") == NOTE).select(
        _header(OFFSET).cast("long").alias("run_offset"),
        _header(QUEUE).alias("queue"),
        _header("remuda-run").alias("run"),
        _header("remuda-workflow").alias("workflow"),
        _header("remuda-version").cast("int").alias("version"),
        number.bitwiseAND(EPOCH - 1).alias("number"),
        F.shiftright(number, 54).cast("int").alias("epoch"),
        (number.bitwiseAND(EPOCH - 1) < STEPS).alias("is_step"),
        _header("remuda-step").alias("step"),
        _header("remuda-kind").alias("kind"),
        F.coalesce(_header("remuda-attempt").cast("int"), F.lit(1)).alias("attempt"),
        _header("remuda-error").alias("error"),
        started.alias("started"),
        F.col("created").alias("recorded"),
        F.col("body"),
        F.col("mime_type"),
        F.col("offset"),
    )


def workflows(lifecycle: DataFrame, messages: DataFrame, prefix: str = "") -> DataFrame:
    """Runs, one row each, with how many steps were recorded. `prefix` is that of the bus."""
    queue = F.col("queue")
    runs = lifecycle.where(queue.startswith(prefix + _QUEUES) & ~queue.endswith(_SIGNALS))
    counted = (
        steps(messages)
        .groupBy(F.col("run_offset").alias("offset"), "queue")
        .agg(
            F.countDistinct(F.when(F.col("is_step"), F.col("number"))).alias("steps"),
            F.min("version").alias("version"),
            _last("cancelled").alias("cancelled"),
            _last("undo").alias("undone"),
            (_last("restarted") + 1).alias("restarts"),
        )
        .withColumn("cancelled", _since_restart("cancelled"))
        .withColumn("undone", _since_restart("undone"))
    )
    return runs.join(counted, ["offset", "queue"], "left").select(
        F.col("offset"),
        F.col("id").alias("run"),
        F.expr(f"substring(queue, {len(prefix + _QUEUES) + 1})").alias("workflow"),
        F.col("version"),
        _state().alias("state"),
        F.col("reason"),
        F.coalesce(F.col("steps"), F.lit(0)).alias("steps"),
        F.coalesce("undone", F.lit(False)).alias("undone"),
        F.col("created"),
        F.coalesce(F.col("completed"), F.col("failed")).alias("ended"),
        F.col("attempts"),
        F.col("queue"),
    )


def _last(kind: str) -> Column:
    """The last epoch with a record of this kind."""
    return F.max(F.when(F.col("kind") == kind, F.col("epoch")))


def _since_restart(column: str) -> Column:
    return F.coalesce(F.col(column) >= F.coalesce("restarts", F.lit(0)), F.lit(False))


def _state() -> Column:
    """How a run stands, in the words of `bus.workflows.status`."""
    state, cancelled = F.col("state"), F.col("cancelled") | (F.col("reason") == "cancelled")
    return (
        F.when(state == "F", "running")
        .when(state.isin("Q", "R"), F.when(F.col("reason").isNotNull(), "sleeping").otherwise("waiting"))
        .when(state.isin("E", "I", "N"), F.when(F.coalesce(cancelled, F.lit(False)), "cancelled").otherwise("failed"))
        .otherwise("done")
    )


def _header(name: str) -> Column:
    return F.col("headers").getItem(name)
