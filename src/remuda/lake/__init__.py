"""The log as tables for every engine: an Arrow stream of all of it, and tables of its sealed files, without copying.

Importing this needs only Remuda; functions that need an extra say how to install it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from remuda.lake.publishing import Published
    from remuda.lake.stream import ArrowTable


def arrow(
    url: str | os.PathLike[str],
    table: str = "messages",
    *,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    fail_on_data_loss: bool = True,
) -> ArrowTable:
    """A table of the log, sealed files and live tail, as a stream that DuckDB, Polars and pyarrow take as it is.

    Each time it is read it is one cut of the log, no older than the last commit. Of some `columns` only, from number
    `start` to before `stop`.
    """
    import remuda.log.sealed.arrow  # noqa: F401  # says what to install, if need be
    from remuda.lake.stream import ArrowTable

    return ArrowTable(url, table, columns, start, stop, fail_on_data_loss=fail_on_data_loss)


def publish(url: str | os.PathLike[str], *, formats: Sequence[str] = ("delta", "iceberg")) -> list[Published]:
    """Update the lakehouse tables of a log to its sealed files: a few KB of metadata for each that came or went."""
    from remuda.lake.publishing import publish_tables

    return publish_tables(url, formats)


def read(spark: SparkSession, lake: str | os.PathLike[str], table: str) -> DataFrame:
    """A table of a pipeline's lake as it is now: `messages`, `events`, `lifecycle`, `history`, `metrics`, …"""
    from remuda.spark.session.missing_pyspark import need_pyspark

    need_pyspark()
    from remuda.spark.pipelines.jobs import lake_table
    from remuda.spark.session.starting import check_session
    from remuda.spark.source.spark_log import place_text

    check_session(spark)
    return lake_table(place_text(lake), table).read(spark)
