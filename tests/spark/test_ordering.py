"""P3: rows that are ingested are put in order in parts that fit into memory, and what was done to them is done once."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from remuda.spark.pipelines import ordering
from remuda.spark.pipelines.ingest import messages_of
from remuda.spark.pipelines.ordering import cuts, in_order, parts_of, survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
ORDERS: dict[str, list[Any]] = {
    "bigint": [*range(-300, 300), 1 << 62, (1 << 62) + 1, -(1 << 62)],
    "double": [*(number / 7 for number in range(-300, 300)), math.inf, -math.inf, math.nan],
    "decimal(20, 3)": [Decimal(number).scaleb(-3) for number in range(600)],
    "date": [date(2024, 1, 1) + timedelta(days=number) for number in range(600)],
    "timestamp": [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=number) for number in range(600)],
    "timestamp_ntz": [datetime(2024, 1, 1) + timedelta(hours=number) for number in range(600)],
    "string": [f"{number:04}" for number in range(600)],
}


@pytest.mark.parametrize(
    ("size", "few", "expected"),
    [(0, 8, 1), (100, 8, 1), (17 * MIB, 8, 2), (1000 * MIB, 2, 8), (1000 * MIB, 200, 63), (1 << 50, 8, 256)],
)
def test_parts_grow_in_number_and_not_in_size(size: int, few: int, expected: int) -> None:
    assert parts_of(size, few) == expected


def test_parts_are_cut_where_about_as_many_rows_lie_between() -> None:
    ranks = [float(rank) for rank in range(1, 256)]
    assert cuts(ranks, 1) == ()
    assert cuts(ranks, 2) == (128.0,)
    assert cuts(ranks, 5) == (51.0, 102.0, 154.0, 205.0)
    assert cuts(ranks, 256) == tuple(ranks)
    assert cuts([7.0] * 255, 4) == (7.0,)
    assert cuts([], 4) == ()


@pytest.mark.parametrize("kind", ORDERS)
def test_rows_come_in_the_order_of_a_column_of_any_kind(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(ordering, "_PART_BYTES", 10_000)
    values = [*ORDERS[kind], None, None, *ORDERS[kind][:3]]
    mixed = [(values[place * 101 % len(values)], b"body") for place in range(len(values))]
    rows = spark.createDataFrame(mixed, f"seq {kind}, body binary").repartition(3)
    parts = survey(rows, "seq")
    assert (parts is None) == (kind in ("string", "timestamp_ntz"))
    assert parts is None or parts.count > 4
    ordered = in_order(rows, "seq", parts).withColumn("part", F.spark_partition_id()).collect()
    assert [str(row["seq"]) for row in ordered] == [str(row["seq"]) for row in rows.orderBy("seq").collect()]
    sizes = [len([*group]) for _, group in itertools.groupby(row["part"] for row in ordered)]
    assert parts is None or max(sizes) < 3 * len(values) / parts.count


def told(spark: SparkSession, count: int) -> DataFrame:
    """Rows of which every second repeats the one before it."""
    said = F.floor(F.col("id") / 2).cast("string")
    return spark.range(count).select(
        F.col("id").alias("seq"), F.lit("orders").alias("name"), F.lit("order").alias("object"),
        (F.col("id") % 2).cast("string").alias("twin"), said.alias("key"), said.cast("binary").alias("body"),
    ).repartition(3)  # fmt: skip


@pytest.mark.parametrize("drop", [True, False])
def test_rows_are_not_looked_at_twice_to_put_them_in_order(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, drop: bool
) -> None:
    monkeypatch.setattr(ordering, "_PART_BYTES", 10_000)
    made = messages_of(told(spark, 500), "seq", drop=drop)
    assert "RangePartitioning" not in made._jdf.queryExecution().optimizedPlan().toString()
    assert "rangepartitioning" not in made._jdf.queryExecution().executedPlan().toString()
    bodies = [int(row["body"]) for row in made.collect()]
    assert bodies == [number for number in range(250) for _ in range(1 if drop else 2)]


@pytest.mark.parametrize("drop", [True, False])
def test_no_rows_are_no_messages(spark: SparkSession, drop: bool) -> None:
    assert messages_of(told(spark, 0), "seq", drop=drop).collect() == []
