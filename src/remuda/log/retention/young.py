"""Which messages of a stretch are within their retention, by the log itself: the queues know it by blocks only (L6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from remuda.log.eventlog import EventLog
from remuda.log.readers.fetch import Run
from remuda.log.sealed.arrow import pa, pc
from remuda.model.state import State
from remuda.model.values.number_runs import merged

_ENDS: Final = [State.SUCCESS.value, State.KICKED.value, State.COMPLETED.value]
_COLUMNS: Final = ("position", "state", "first", "count")
_MOST: Final = 10_000_000
"""How many events are looked through. Where more happen, a block takes a moment, and is as good as a message."""


def young_runs(log: EventLog, stretches: Sequence[Run], since: int) -> list[Run]:
    """What came in or came to its end at a time or later, in these stretches at least, as runs in order.

    Where events cannot be read, all are young: nothing goes that may have to stay.
    """
    if not stretches:
        return []
    low, high = stretches[0][0], max(first + count for first, count in stretches)
    start, end = log.position_at(since), log.ends().next_position
    if end - start > _MOST:
        return list(stretches)
    found = [(max(log.offset_at(since), low), high)]
    reached = start
    for batch in log.event_batches(start, columns=_COLUMNS):
        positions = batch.column("position")
        if positions[0].as_py() != reached or positions[-1].as_py() - reached + 1 != len(positions):
            return list(stretches)
        reached += len(positions)
        found += _ends(batch, low, high)
    if reached < end:
        return list(stretches)
    return merged((first, stop - first) for first, stop in found if first < stop)


def _ends(batch: Any, low: int, high: int) -> list[Run]:
    """From where to where the messages lie of which a batch of events tells that they ended."""
    first = batch.column("first")
    stop = pc.add(first, batch.column("count"))
    ended = pc.is_in(batch.column("state"), value_set=pa.array(_ENDS))
    near = pc.and_(pc.less(first, high), pc.greater(stop, low))
    chosen = pc.and_(ended, near)
    return list(zip(first.filter(chosen).to_pylist(), stop.filter(chosen).to_pylist(), strict=True))
