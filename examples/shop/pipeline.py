"""The data pipeline over the shop's log: Spark archives it, folds it into lives, and answers what no queue can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from remuda import lake as lakes
from remuda.model.errors import RemudaError
from remuda.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PIPELINES = ("archive", "lifecycle", "metrics")


def show(directory: str, lake: Path, console: Console) -> None:
    """Run the pipelines beside the open broker, then print one row per order; where there is no Java, say so."""
    try:
        with _step("start Spark", console):
            spark = session("shop", quick=True)
    except RemudaError as error:
        console.print(f"  The pipelines did not run: {error}", markup=False)
        return
    from remuda.spark.pipelines.jobs import JOBS
    from remuda.spark.pipelines.streaming_queries import Place

    try:
        for name in PIPELINES:
            with _step(f"remuda pipeline run {name}", console):
                JOBS[name](spark, Place(url=directory, lake=str(lake)))
        with _step("ask: how long did each order take, and where?", console):
            rows = journeys(lakes.read(spark, lake, "messages"), lakes.read(spark, lake, "lifecycle")).collect()
    finally:
        spark.stop()
    console.print(_table([row.asDict() for row in rows]))


def journeys(messages: DataFrame, lives: DataFrame) -> DataFrame:
    """One row per order: its messages, how long it was under way, its retries, and the queue that took longest."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col("body").cast("string")
    number = F.coalesce(F.get_json_object(text, "$.order.number"), F.get_json_object(text, "$.number"))
    orders = messages.select("offset", number.cast("int").alias("order")).distinct()
    ended = F.coalesce("completed", "failed", "modified")
    seconds = (F.unix_micros(ended) - F.unix_micros("created")) / 1e6
    steps = lives.join(orders, "offset").select(
        "order", "offset", "queue", "attempts", "created", ended.alias("ended"), seconds.alias("seconds")
    )
    return (
        steps.groupBy("order")
        .agg(
            F.countDistinct("offset").alias("messages"),
            ((F.unix_micros(F.max("ended")) - F.unix_micros(F.min("created"))) / 1e6).alias("seconds"),
            F.sum(F.greatest(F.col("attempts") - 1, F.lit(0))).alias("retries"),
            F.max_by("queue", "seconds").alias("slowest"),
            F.max("seconds").alias("slowest_seconds"),
        )
        .orderBy("order")
    )


@contextmanager
def _step(name: str, console: Console) -> Iterator[None]:
    started = time.monotonic()
    with console.status(name) if console.is_terminal else nullcontext():
        yield
    console.print(f"  {name}: {time.monotonic() - started:.1f} s")


def _table(rows: list[dict[str, object]]) -> Table:
    title = "Where each order's time went"
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for name in ("order", "messages", "seconds", "retries"):
        drawn.add_column(name, justify="right")
    drawn.add_column("slowest step")
    for row in rows:
        slowest = f"{row['slowest']} ({row['slowest_seconds']:.2f} s)"
        drawn.add_row(str(row["order"]), str(row["messages"]), f"{row['seconds']:.2f}", str(row["retries"]), slowest)
    return drawn
