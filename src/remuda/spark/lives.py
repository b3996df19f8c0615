"""Lives of messages (M7), told from the log as the broker itself tells them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from remuda.log.schemas import EVENTS_SCHEMA
from remuda.log.tables import to_events
from remuda.model.document import Document, QueueView, document
from remuda.model.message import Message
from remuda.model.records import Event
from remuda.model.state import State
from remuda.spark.port import SparkLog
from remuda.spark.selection import Selection
from remuda.spark.tables import EVENTS, LIFECYCLE_SCHEMA, MESSAGES

_MESSAGE_COLUMNS: Final = ("offset", "created", "id", "name", "topics", "object", "key", "queues")
_EVENT_COLUMNS: Final = tuple(EVENTS_SCHEMA.names)
Story = list[tuple[int, Event]]


def lives(
    log: SparkLog, offsets: range, positions: Sequence[range], only: Sequence[range] | None, selection: Selection
) -> Iterator[pa.RecordBatch]:
    """The rows of the messages at these offsets, told by the events at these positions; of some of them `only`."""
    told = _stories(log, offsets, positions, only)
    narrow = Selection(since=selection.since, until=selection.until, names=selection.names, topics=selection.topics)
    for batch in log.batches(MESSAGES, offsets.start, offsets.stop, narrow, _MESSAGE_COLUMNS):
        documents = [
            _document(row, told.get(row["offset"], []))
            for row in _plain(batch)
            if only is None or any(row["offset"] in one for one in only)
        ]
        yield from _chosen(documents, selection)


def _stories(
    log: SparkLog, offsets: range, positions: Sequence[range], only: Sequence[range] | None
) -> dict[int, Story]:
    stories: dict[int, Story] = defaultdict(list)
    for part in positions:
        for batch in log.batches(EVENTS, part.start, part.stop, Selection(), _EVENT_COLUMNS):
            for record in to_events(batch):
                for event in record.rows:
                    for offset in range(max(event.first, offsets.start), min(event.first + event.count, offsets.stop)):
                        if only is None or any(offset in one for one in only):
                            stories[offset].append((record.time, event))
    return stories


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    times = batch.set_column(1, "created", batch.column("created").cast(pa.int64()))
    rows: list[dict[str, Any]] = times.to_pylist()
    return rows


def _document(row: dict[str, Any], story: Story) -> Document:
    message = Message(
        name=row["name"],
        body=b"",
        id=row["id"],
        topics=tuple(row["topics"] or ()),
        object=row["object"],
        key=row["key"],
        created=row["created"],
    )
    return document(row["offset"], message, row["queues"] or (), story)


def _chosen(documents: Iterable[Document], selection: Selection) -> Iterator[pa.RecordBatch]:
    rows = [row for one in documents for row in _rows(one)]
    if selection.queues is not None:
        rows = [row for row in rows if row["queue"] in selection.queues]
    if selection.states is not None:
        rows = [row for row in rows if row["state"] in selection.states]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=LIFECYCLE_SCHEMA)


def _rows(one: Document) -> Iterator[dict[str, Any]]:
    whole = {
        "offset": one.offset,
        "id": one.message.id,
        "name": one.message.name,
        "object": one.message.object,
        "key": one.message.key,
        "created": one.created,
        "topic_count": one.topic_count,
    }
    if not one.queues:
        nowhere = dict.fromkeys(("queued", "delivered", "success"), False)
        yield {
            **whole, **nowhere, "state": State.UNCHANGED.value, "archived": True, "modified": one.created,
            "confirmed_count": 0, "attempts": 0, "consumed_by": [],
        }  # fmt: skip
    for view in one.queues:
        yield {**whole, **_of_queue(view)}


def _of_queue(view: QueueView) -> dict[str, Any]:
    names = (
        "queue", "queued", "delivered", "success", "archived", "modified", "consumed", "processed", "completed",
        "failed", "confirmed_count", "attempts", "reason", "detail",
    )  # fmt: skip
    consumed_by = [
        {"consumer": one.consumer, "fetched": one.fetched, "confirmed": one.confirmed, "duration": one.duration}
        for one in view.consumed_by
    ]
    return {name: getattr(view, name) for name in names} | {"state": view.state.value, "consumed_by": consumed_by}
