"""Records as Arrow batches, and messages back from them. A shared column is built once, not row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from remuda.log.schemas import EVENTS_SCHEMA, HEADERS, MESSAGES_SCHEMA, TEXTS, TIME
from remuda.model.message import NO_HEADERS, Priority
from remuda.model.messages import Column, Messages, fold
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State


def message_batch(record: Appended) -> pa.RecordBatch:
    messages = record.messages
    count = len(record)

    def column(values: Column[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind) if isinstance(values, list) else pa.repeat(pa.scalar(values, kind), count)

    arrays = {
        "offset": pa.array(range(record.first, record.first + count), pa.int64()),
        "created": column(messages.created, TIME),
        "id": _ids(messages, count),
        "name": column(messages.name, pa.string()),
        "topics": column(messages.topics, TEXTS),
        "object": column(messages.object, pa.string()),
        "key": column(messages.key, pa.string()),
        "timestamp": column(messages.timestamp, TIME),
        "mime_type": column(messages.mime_type, pa.string()),
        "headers": column(_pairs(messages.headers), HEADERS),
        "priority": column(messages.priority, pa.int8()),
        "expires": column(messages.expires, TIME),
        "due": column(messages.due, TIME),
        "queues": column(record.queues, TEXTS),
        "digest": column(record.digest, pa.binary()),
        "body": pa.array(messages.bodies, pa.binary()),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in MESSAGES_SCHEMA.names], schema=MESSAGES_SCHEMA)


def event_batch(records: Sequence[Events]) -> pa.RecordBatch:
    rows = [row for record in records for row in record.rows]
    positions: list[int] = []
    times: list[int] = []
    for record in records:
        positions += range(record.first, record.first + len(record))
        times += [record.time] * len(record)
    columns: dict[str, list[Any]] = {"position": positions, "time": times}
    for name in EVENTS_SCHEMA.names[2:]:
        columns[name] = [getattr(row, name) for row in rows]
    columns["state"] = [state.value for state in columns["state"]]
    arrays = [pa.array(columns[field.name], field.type) for field in EVENTS_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS_SCHEMA)


def to_appended(batch: pa.RecordBatch) -> Appended:
    """Rows at neighbouring offsets as a record."""
    messages = to_messages(batch)
    created = messages.created
    return Appended(
        batch.column("offset")[0].as_py(),
        created[0] if isinstance(created, list) else created,
        messages,
        _tuples(batch.column("queues")),
        _plain(batch.column("digest")),
    )


def to_messages(batch: pa.RecordBatch) -> Messages:
    priority = _plain(batch.column("priority"))
    return Messages(
        bodies=batch.column("body").to_pylist(),
        ids=batch.column("id").to_pylist(),
        name=_plain(batch.column("name")),
        topics=_tuples(batch.column("topics")),
        object=_plain(batch.column("object")),
        key=_plain(batch.column("key")),
        timestamp=_times(batch.column("timestamp")),
        mime_type=_plain(batch.column("mime_type")),
        headers=_headers(batch.column("headers")),
        priority=[Priority(value) for value in priority] if isinstance(priority, list) else Priority(priority),
        created=_times(batch.column("created")),
        expires=_times(batch.column("expires")),
        due=_times(batch.column("due")),
    )


def to_events(batch: pa.RecordBatch) -> list[Events]:
    """Rows as records, one for each time."""
    records: list[Events] = []
    columns = batch.set_column(1, "time", batch.column("time").cast(pa.int64()))
    due = EVENTS_SCHEMA.get_field_index("due")
    for row in columns.set_column(due, "due", batch.column("due").cast(pa.int64())).to_pylist():
        position, time = row.pop("position"), row.pop("time")
        event = Event(**{**row, "state": State(row["state"])})
        if records and records[-1].time == time and records[-1].first + len(records[-1]) == position:
            records[-1].rows.append(event)
        else:
            records.append(Events(position, time, [event]))
    return records


def _ids(messages: Messages, count: int) -> pa.Array:
    if messages.ids is None:
        return pa.repeat(pa.scalar("", pa.string()), count)
    if isinstance(messages.ids, range):
        return pa.array(messages.ids, pa.int64()).cast(pa.string())
    return pa.array(messages.ids, pa.string())


def _pairs(headers: Column[Mapping[str, str]]) -> Column[Any]:
    if isinstance(headers, list):
        return [list(row.items()) for row in headers]
    return tuple(headers.items())


def _plain(column: pa.Array) -> Any:
    """The values, or one of them where all are equal."""
    if column.null_count == len(column):
        return None
    if column.null_count == 0:
        ends = pc.min_max(column)
        if ends["min"] == ends["max"]:
            return ends["min"].as_py()
    return column.to_pylist()


def _times(column: pa.Array) -> Any:
    return _plain(column.cast(pa.int64()))


def _tuples(column: pa.Array) -> Column[tuple[str, ...]]:
    lengths = pc.min_max(pc.list_value_length(column))
    shortest, longest = lengths["min"].as_py(), lengths["max"].as_py()
    if longest == 0:
        return ()
    if shortest == longest == 1:
        values = _plain(column.flatten())
        return [(value,) for value in values] if isinstance(values, list) else (values,)
    return fold([tuple(row) for row in column.to_pylist()])


def _headers(column: pa.Array) -> Column[Mapping[str, str]]:
    if len(column.keys) == 0:
        return NO_HEADERS
    return fold([dict(row) if row else NO_HEADERS for row in column.to_pylist()])
