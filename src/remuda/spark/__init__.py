"""Spark on the log: a data source and a sink named `remuda`, and pipelines on top of them.

Importing this needs only Remuda; the first call that needs PySpark says how to install it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remuda.model.errors import InvalidOption
from remuda.spark.session.missing_pyspark import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session(
    name: str = "remuda",
    *,
    master: str | None = None,
    remote: str | None = None,
    quick: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one on `master` (`local[*]` by default), or on a Spark Connect server.

    `quick` starts in half the time and runs long work at half the speed: for tests and short commands.
    """
    need_pyspark()
    from remuda.spark.session.starting import check_arguments, start

    check_arguments(name, master, remote, quick, config)
    return start(name, master=master, remote=remote, quick=quick, config=config or {})


def read(spark: SparkSession, url: str | os.PathLike[str], table: str = "messages", **options: Any) -> DataFrame:
    """A table of the log at native speed: sealed segments by Spark's own Parquet reader, the tail by the source.

    With a `schema`, such as `"id bigint, total double"`, JSON bodies of messages are structs of these fields; those
    that do not fit are null, and the column `fault` says why.
    """
    need_pyspark()
    from remuda.spark.pipelines.typed import shape_of, with_body
    from remuda.spark.session.starting import check_session, ensure_registered
    from remuda.spark.source.reading import read_table
    from remuda.spark.source.spark_log import anchored, place_text

    place = anchored(place_text(url))
    check_session(spark)
    ensure_registered(spark)
    schema = options.pop("schema", None)
    if schema is not None and table != "messages":
        raise InvalidOption(f"schema is for the bodies of messages; the table {table!r} has none")
    rows = read_table(spark, place, table, options)
    return rows if schema is None else with_body(rows, shape_of(spark, schema))


def register(spark: SparkSession) -> None:
    """Make `format("remuda")` known to a session that you started yourself, whichever Python is on the path."""
    need_pyspark()
    from remuda.spark.session.starting import check_session
    from remuda.spark.session.starting import register as register_source

    check_session(spark)
    register_source(spark)
