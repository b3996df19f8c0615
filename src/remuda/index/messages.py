"""Messages of the log as documents of an index, each copy as the changes of the same batch leave it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from remuda.index.copies import Copy
from remuda.index.folding import Changes
from remuda.index.port import MESSAGE_COLUMNS, Document
from remuda.index.text import text_of

NO_QUEUE: Final = ""
"""Stands for the queue of a message that went to none."""


def listed(batch: pa.RecordBatch, names: Sequence[str] = MESSAGE_COLUMNS) -> dict[str, list[Any]]:
    """The columns of messages that an index uses; times are microseconds."""
    columns = {name: batch.column(name) for name in names}
    for name in ("created", "timestamp"):
        columns[name] = columns[name].cast(pa.int64())
    return {name: column.to_pylist() for name, column in columns.items()}


def documents(batch: pa.RecordBatch, changes: Changes) -> Iterator[Document]:
    """The documents of messages. Changes that are used here are taken out: what is left concerns other messages."""
    for offset, created, id, name, topics, object, key, timestamp, mime_type, queues, body in zip(
        *listed(batch).values(), strict=True
    ):
        copies = []
        for queue in queues or (NO_QUEUE,):
            pending = changes.get(queue)
            change = pending.pop(offset, None) if pending else None
            copies.append((queue, Copy.begun(created, queue).after(change)))
        yield Document(
            offset, created, id, name, tuple(topics or ()), object, key, timestamp, mime_type, len(body),
            text_of(body, mime_type), copies,
        )  # fmt: skip
