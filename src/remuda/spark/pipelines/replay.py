"""Replay: messages from the lake back into the queues they were in, or into another."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from remuda.model.message import CORRELATION


def replayed(archived: DataFrame, to: str | None = None) -> DataFrame:
    """Rows for the sink. They go to queues by name, since by topic they would be taken for repetitions and held back.

    Each is a new message that names the old one in its headers.
    """
    queue = F.lit(to) if to is not None else F.col("queue")
    headers = F.map_concat(
        F.map_filter(F.coalesce("headers", F.create_map()), lambda name, _: name != CORRELATION),
        F.create_map(F.lit(CORRELATION), F.col("id")),
    )
    rows = archived if to is not None else archived.where(F.col("queue").isNotNull())
    columns = ("name", "topics", "object", "key", "timestamp", "mime_type", "priority", "body")
    return rows.select(*columns, headers.alias("headers"), queue.alias("queue"))
