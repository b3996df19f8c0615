"""Events folded into changes: what a batch of them makes of each copy, which is then written only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from remuda.index.port import EVENT_COLUMNS
from remuda.index.query import kept_state
from remuda.model.state import State

ROWS: Final = 100_000
"""Changes that are gathered before they are written."""
_FETCHED: Final = State.FETCHED.value
_QUEUED: Final = State.QUEUED.value
_DEAD: Final = State.DEAD.value


class Change(NamedTuple):
    """The new state of a copy. None leaves a value as it was."""

    state: str
    modified: int
    position: int
    attempts: int | None
    reason: str | None
    clean: bool
    """Whether an earlier reason is cleared."""


Changes = dict[str, dict[int, Change]]
"""By queue and offset."""


def fold(batches: Iterable[pa.RecordBatch], rows: int = ROWS) -> Iterator[Changes]:
    """The changes that events make, in parts of about `rows` copies; parts are in the order of the log."""
    changes: Changes = {}
    size = 0
    for batch in batches:
        for position, time, queue, state, first, count, attempt, reason in zip(*_columns(batch), strict=True):
            is_fetch, is_queued = state == _FETCHED, state == _QUEUED
            kept = kept_state(state, reason) if state == _DEAD else state
            change = Change(kept, time, position, attempt if is_fetch else None, reason or None, is_queued)
            for start in range(first, first + count, rows):
                stop = min(first + count, start + rows)
                _put(changes.setdefault(queue, {}), start, stop, change)
                size += stop - start
                if size >= rows:
                    yield changes
                    changes, size = {}, 0
    if changes:
        yield changes


def _put(pending: dict[int, Change], start: int, stop: int, change: Change) -> None:
    if stop - start == 1:
        old = pending.get(start)
        pending[start] = change if old is None else _after(old, change)
        return
    # Neighbours nearly always have the same change pending: the two are combined once.
    known: Change | None = None
    result = change
    for offset in range(start, stop):
        old = pending.get(offset)
        if old is None:
            pending[offset] = change
        else:
            if old is not known:
                known, result = old, _after(old, change)
            pending[offset] = result


def _after(old: Change, new: Change) -> Change:
    return Change(
        new.state,
        new.modified,
        new.position,
        old.attempts if new.attempts is None else new.attempts,
        new.reason if new.reason is not None or new.clean else old.reason,
        old.clean or new.clean,
    )


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    columns = [batch.column(name) for name in EVENT_COLUMNS]
    columns[1] = columns[1].cast(pa.int64())
    return [column.to_pylist() for column in columns]
