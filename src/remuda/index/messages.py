"""Messages of the log as documents of an index, each copy as the changes of the same batch leave it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from remuda.index.folding import Change, Changes
from remuda.index.port import MESSAGE_COLUMNS, CopyState, Document
from remuda.index.text import searchable, text_of
from remuda.model.state import State

NO_QUEUE = ""
"""Stands for the queue of a message that went to none."""


def copy_of(queue: str, created: int, change: Change | None) -> CopyState:
    """A message's copy in a queue, as it came or as it is after a change."""
    if change is None:
        return CopyState(queue, State.QUEUED.value if queue else State.UNCHANGED.value, created, 0, None)
    state, modified, position, attempts, reason, _ = change
    return CopyState(queue, state, modified, attempts or 0, reason, position)


def documents(batch: pa.RecordBatch, changes: Changes) -> Iterator[Document]:
    """The documents of messages. Changes that are used here are taken out: what is left concerns other messages."""
    columns = [batch.column(name) for name in MESSAGE_COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    for offset, created, id, name, topics, object, key, mime_type, queues, body in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        copies = []
        for queue in queues or (NO_QUEUE,):
            pending = changes.get(queue)
            copies.append(copy_of(queue, created, pending.pop(offset, None) if pending else None))
        text = text_of(body, mime_type)
        yield Document(
            offset, created, id, name, tuple(topics or ()), object, key, mime_type, len(body), searchable(text), copies
        )
