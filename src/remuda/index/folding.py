"""Events folded into changes: what a batch of them makes of each copy, which is then written only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from remuda.index.copies import Change
from remuda.index.port import EVENT_COLUMNS
from remuda.model.records import Event
from remuda.model.state import State

ROWS: Final = 100_000
"""Changes that are gathered before they are written."""
_STATES: Final = {state.value: state for state in State}


Changes = dict[str, dict[int, Change]]
"""By queue and offset."""


def fold(batches: Iterable[pa.RecordBatch], rows: int = ROWS) -> Iterator[Changes]:
    """The changes that events make, in parts of about `rows` copies; parts are in the order of the log."""
    changes: Changes = {}
    size = 0
    for batch in batches:
        for position, time, queue, state, first, count, consumer, attempt, reason, to in zip(
            *_columns(batch), strict=True
        ):
            event = Event(queue, _STATES[state], first, count, consumer, attempt or 0, reason, to=to)
            for start in range(first, first + count, rows):
                stop = min(first + count, start + rows)
                _put(changes.setdefault(queue, {}), start, stop, event, time, position)
                size += stop - start
                if size >= rows:
                    yield changes
                    changes, size = {}, 0
    if changes:
        yield changes


def _put(pending: dict[int, Change], start: int, stop: int, event: Event, time: int, position: int) -> None:
    # Neighbours nearly always have the same change pending: the two are combined once.
    known: Change | None = None
    result = alone = Change(None, event, time, position)
    for offset in range(start, stop):
        old = pending.get(offset)
        if old is None:
            pending[offset] = alone
        else:
            if old is not known:
                known, result = old, Change(old, event, time, position)
            pending[offset] = result


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    columns = [batch.column(name) for name in EVENT_COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    return [column.to_pylist() for column in columns]
