"""Putting rows in order, however many: in parts that fit into memory, each of them sorted by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, NumericType, TimestampType

_MOST_PARTS: Final = 256
_PART_BYTES: Final = 128 << 20
"""What a task sorts without spilling where Java has the memory that Spark gives it by default."""
_SMALL_PART: Final = 16 << 20
_ROW_BYTES: Final = 100
"""What a row takes besides its body."""
_SAMPLE: Final = 1000


class Parts(msgspec.Struct, frozen=True):
    """Into how many parts rows are cut, and where: each begins with the rank that is its bound."""

    count: int
    bounds: tuple[float, ...]


def survey(rows: DataFrame, order: str) -> Parts | None:
    """How to part rows by a column. None where its values cannot be ranked: Spark then finds out by itself.

    Spark looks at the rows for that as they come out of all that was done to them, and so does everything twice.
    """
    kind = rows.schema[order].dataType
    if not isinstance(kind, NumericType | DateType | TimestampType):
        return None
    shares = [part / _MOST_PARTS for part in range(1, _MOST_PARTS)]
    sizes = rows.limit(_SAMPLE).agg(F.avg(F.octet_length("body"))).first()
    rank = _rank(rows, order)
    known = F.when(~F.isnan(rank), rank)
    found = rows.agg(F.count(F.lit(1)), F.percentile_approx(known, shares)).first()
    assert sizes is not None
    assert found is not None
    few = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    count = parts_of(int(found[0] * ((sizes[0] or 0) + _ROW_BYTES)), few)
    return Parts(count, cuts(found[1] or (), count))


def parts_of(size: int, few: int) -> int:
    """How many parts rows of so many bytes make: `few` of them keep all cores busy, unless they would be small."""
    return min(max(-(-size // _PART_BYTES), min(few, -(-size // _SMALL_PART)), 1), _MOST_PARTS)


def cuts(ranks: Sequence[float], count: int) -> tuple[float, ...]:
    """Bounds of parts of about the same size, from the ranks of all possible ones."""
    at = (len(ranks) + 1) / count
    return tuple(sorted({ranks[round(at * part) - 1] for part in range(1, count)})) if ranks else ()


def in_order(rows: DataFrame, order: str, parts: Parts | None) -> DataFrame:
    """Rows in the order of a column, from the first part to the last."""
    if parts is None:
        return rows.orderBy(order)
    place = F.coalesce(_place(_rank(rows, order), parts.bounds, 0), F.lit(0))
    return rows.repartitionById(parts.count, place).sortWithinPartitions(order)


def _rank(rows: DataFrame, order: str) -> Column:
    """A number that is the greater, the later a row comes; several rows may have the same."""
    is_day = isinstance(rows.schema[order].dataType, DateType)
    return (F.unix_date(order) if is_day else F.col(order)).cast("double")


def _place(rank: Column, bounds: Sequence[float], first: int) -> Column:
    """The part of a rank: null where it is null."""
    if not bounds:
        return F.when(rank.isNotNull(), F.lit(first))
    middle = len(bounds) // 2
    before, after = _place(rank, bounds[:middle], first), _place(rank, bounds[middle + 1 :], first + middle + 1)
    return F.when(rank < bounds[middle], before).otherwise(after)
