"""Records as Arrow batches, and messages back from them. A shared column is built once, not row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remuda.log.sealed.arrow import pa, pc
from remuda.log.sealed.table_schemas import EVENTS_SCHEMA, MESSAGES_SCHEMA
from remuda.model.message import NO_HEADERS
from remuda.model.messages import Column, Messages, fold
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State


def message_batch(record: Appended, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The rows of a record; of some columns only, if they are named."""
    messages = record.messages
    count = len(record)

    def column(values: Column[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind) if isinstance(values, list) else pa.repeat(pa.scalar(values, kind), count)

    def array_of(name: str) -> pa.Array:
        kind = MESSAGES_SCHEMA.field(name).type
        match name:
            case "offset":
                return pa.array(range(record.first, record.first + count), kind)
            case "id":
                return _ids(messages, count)
            case "headers":
                return column(_pairs(messages.headers), kind)
            case "queues":
                return column(record.queues, kind)
            case "digest":
                return column(record.digest, kind)
            case "body":
                return pa.array(messages.bodies, kind)
            case _:
                return column(getattr(messages, name), kind)

    schema = _narrowed(MESSAGES_SCHEMA, columns)
    return pa.RecordBatch.from_arrays([array_of(name) for name in schema.names], schema=schema)


def event_batch(records: Sequence[Events], columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The rows of neighbouring records; of some columns only, if they are named."""
    rows = [row for record in records for row in record.rows]

    def values(name: str) -> list[Any]:
        match name:
            case "position":
                return [first for record in records for first in range(record.first, record.first + len(record))]
            case "time":
                return [record.time for record in records for _ in record.rows]
            case "state":
                return [row.state.value for row in rows]
            case _:
                return [getattr(row, name) for row in rows]

    schema = _narrowed(EVENTS_SCHEMA, columns)
    return pa.RecordBatch.from_arrays([pa.array(values(field.name), field.type) for field in schema], schema=schema)


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
        priority=_plain(batch.column("priority")),
        created=_times(batch.column("created")),
        expires=_times(batch.column("expires")),
        due=_times(batch.column("due")),
        wire=_plain(batch.column("wire")),
    )


def to_events(batch: pa.RecordBatch) -> list[Events]:
    """Rows as records, one for each time."""
    records: list[Events] = []
    columns = batch.set_column(1, "time", batch.column("time").cast(pa.int64()))
    due = EVENTS_SCHEMA.get_field_index("due")
    for row in columns.set_column(due, "due", batch.column("due").cast(pa.int64())).to_pylist():
        position, time = row.pop("position"), row.pop("time")
        event = Event(**{**row, "state": State(row["state"]), "priority": row["priority"] or 0})
        if records and records[-1].time == time and records[-1].first + len(records[-1]) == position:
            records[-1].rows.append(event)
        else:
            records.append(Events(position, time, [event]))
    return records


def _narrowed(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([field for field in schema if field.name in columns])


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
