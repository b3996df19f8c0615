"""Ingest: any DataFrame through the compacter's and the distributor's rules, into queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.log.spool import SPOOL_SCHEMA
from remuda.model.errors import InvalidOption
from remuda.model.state import State
from remuda.spark.pipelines.history import compacts, with_repetitions
from remuda.spark.pipelines.ordering import in_order, survey
from remuda.spark.topics import any_covered, topics_of

_FIELDS: Final = {
    "name": "string", "topics": "array<string>", "object": "string", "key": "string", "body": "binary",
}  # fmt: skip


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues and channels there are, as the distributor knows them."""

    default_queue: str | None = None
    queues: Sequence[str] = ()
    """Queues that exist; only with a default queue does it matter which."""
    channels: Mapping[str, Sequence[str]] = {}
    """The topic prefixes of each channel."""


def messages_of(rows: DataFrame, order: str, *, drop: bool = False) -> DataFrame:
    """The rows as messages for the sink, in their order; columns that a message does not have are left out.

    With `drop`, without those that repeat what the rows before them said of their object and key.
    """
    if order not in rows.columns:
        raise InvalidOption(f"the rows have no column {order!r} to be ordered by; they have {', '.join(rows.columns)}")
    _check(rows)
    parts = survey(rows, order)
    columns = [name for name in SPOOL_SCHEMA.names if name in rows.columns or name == "name"]
    if not drop:
        return in_order(completed(rows), order, parts).select(*columns)
    told = judged(rows, order, parts=None if parts is None else parts.count)
    return in_order(told.where(F.col("state") == State.QUEUED.value), order, parts).select(*columns)


def judged(
    rows: DataFrame,
    order: str,
    *,
    last: DataFrame | None = None,
    routes: Routes | None = None,
    compact: bool = True,
    objects: Mapping[str, bool] | None = None,
    parts: int | None = None,
) -> DataFrame:
    """The rows with their `queues` and their `state`: queued, or unchanged and so in no queue.

    `order` is the column that says which came first; `last` holds the last body of each object and key. Rows are
    compared in so many `parts`, or in as many as Spark makes by itself.
    """
    routes = routes or Routes()
    return (
        rows.transform(completed)
        .transform(_after, order, last, parts)
        .withColumn("unchanged", F.col("repeats") & compacts(compact, objects))
        .where(F.col("_new"))
        .withColumn("queues", F.when(F.col("unchanged"), F.array().cast("array<string>")).otherwise(queues_of(routes)))
        .withColumn("state", F.when(F.col("unchanged"), State.UNCHANGED.value).otherwise(State.QUEUED.value))
        .drop("_new", "_order", "repeats", "unchanged")
    )


def completed(rows: DataFrame) -> DataFrame:
    """The rows with every field that the rules look at; a name is a row's first topic unless it says otherwise."""
    missing = {name: F.lit(None).cast(kind) for name, kind in _FIELDS.items() if name not in rows.columns}
    whole = rows.withColumns(missing)
    return whole.withColumns(
        {
            "name": F.coalesce("name", F.try_element_at("topics", F.lit(1))),
            "body": F.col("body").cast("binary"),
        }
    )


def _check(rows: DataFrame) -> None:
    """Refuse rows that cannot become messages."""
    kinds = dict(rows.dtypes)
    if "body" not in kinds or not {"name", "topics"} & kinds.keys():
        raise InvalidOption(f"a message needs a body, and a name or topics; the rows have {', '.join(kinds)}")
    for name, wanted in _FIELDS.items():
        allowed = {wanted, "string"} if name == "body" else {wanted}
        if name in kinds and kinds[name] not in allowed:
            kind = " or ".join(sorted(allowed))
            raise InvalidOption(f"column {name!r} must be {kind}, not {kinds[name]}: cast it. Nothing was published")


def queues_of(routes: Routes) -> Column:
    """The queue of each topic's root, then every channel with a fitting prefix; each once."""
    topics = topics_of()
    roots = F.transform(topics, lambda topic: _queue(F.split_part(topic, F.lit("."), F.lit(1)), routes))
    names = F.array_distinct(roots)
    for channel, prefixes in routes.channels.items():
        names = F.when(any_covered(topics, prefixes), F.array_union(names, F.array(F.lit(channel)))).otherwise(names)
    return names


def _queue(root: Column, routes: Routes) -> Column:
    if routes.default_queue is None:
        return root
    return F.when(root.isin(*routes.queues), root).otherwise(routes.default_queue)


def _after(rows: DataFrame, order: str, last: DataFrame | None, parts: int | None) -> DataFrame:
    """The rows with `repeats`: whether each repeats the row before it, or the last one from before all of them."""
    # Bodies are compared as they are: to hash each costs more than to compare neighbours.
    if last is None:
        return rows.withColumn("_new", F.lit(True)).transform(with_repetitions, "body", order, parts)
    marked = rows.withColumns({"_new": F.lit(True), "_order": F.struct(F.lit(1), F.col(order))})
    kind = dict(marked.dtypes)
    before = completed(last).withColumns(
        {
            "_new": F.lit(False),
            "_order": F.struct(F.lit(0), F.lit(None).cast(dict(rows.dtypes)[order]).alias(order)).cast(kind["_order"]),
        }
    )
    shared = [name for name in marked.columns if name in before.columns]
    joined = marked.unionByName(before.select(*shared), allowMissingColumns=True)
    return joined.transform(with_repetitions, "body", "_order", parts)
