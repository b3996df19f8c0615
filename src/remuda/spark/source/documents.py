"""Lives of messages (M7), computed from the log and equal to what the broker reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remuda.spark.source.folding import EVENT_COLUMNS, MESSAGE_COLUMNS, fold, within
from remuda.spark.source.losses import Gap
from remuda.spark.source.selection import Selection
from remuda.spark.source.spark_log import SparkLog
from remuda.spark.source.tables import EVENTS, MESSAGES, SCHEMAS

_ROWS: Final = 1 << 14
"""Of a batch that is handed to Spark, at most."""


def lives(
    log: SparkLog,
    offsets: range,
    positions: Sequence[range],
    only: Sequence[range] | None,
    selection: Selection,
    missing: list[Gap] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The lives of the messages at these offsets, with the events at these positions; of some of them `only`."""
    wanted = [offsets] if only is None else only
    # Events first. The collector removes a message before its events: of a message that is found afterwards all of
    # them were there.
    events = _events(log, positions, wanted, missing)
    rows = fold(_messages(log, offsets, wanted, selection, missing), events)
    for name, texts in (("queue", selection.queues), ("state", selection.states)):
        if texts is not None:
            rows = rows.filter(pc.is_in(rows.column(name), pa.array(sorted(texts), pa.string())))
    for first in range(0, rows.num_rows, _ROWS):
        yield rows.slice(first, _ROWS)


def _messages(
    log: SparkLog, offsets: range, wanted: Sequence[range], selection: Selection, missing: list[Gap] | None
) -> pa.Table:
    narrow = Selection(since=selection.since, until=selection.until, topics=selection.topics)
    found = log.batches(MESSAGES, offsets.start, offsets.stop, narrow, MESSAGE_COLUMNS, missing)
    return _table(MESSAGES, MESSAGE_COLUMNS, (batch.filter(_wanted(batch, wanted, "offset")) for batch in found))


def _events(log: SparkLog, positions: Sequence[range], wanted: Sequence[range], missing: list[Gap] | None) -> pa.Table:
    found = (
        batch
        for part in positions
        for batch in log.batches(EVENTS, part.start, part.stop, Selection(), EVENT_COLUMNS, missing)
    )
    return _table(EVENTS, EVENT_COLUMNS, (batch.filter(_wanted(batch, wanted, "first", "count")) for batch in found))


def _wanted(batch: pa.RecordBatch, wanted: Sequence[range], first: str, count: str | None = None) -> pa.Array:
    begin = batch.column(first).to_numpy()
    length = np.ones_like(begin) if count is None else batch.column(count).to_numpy()
    return pa.array(within(wanted, begin, length))


def _table(table: str, columns: Sequence[str], batches: Iterator[pa.RecordBatch]) -> pa.Table:
    schema = pa.schema([SCHEMAS[table].field(name) for name in columns])
    return pa.Table.from_batches((batch.cast(schema) for batch in batches), schema)
