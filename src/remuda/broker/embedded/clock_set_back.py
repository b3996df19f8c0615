"""After a clock that was ahead: messages that joined their lanes before their time wait again (L11, B14)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from remuda.core.core import Core
from remuda.core.queues.queue import Queue
from remuda.log.log import Log
from remuda.model.errors import RemudaError
from remuda.model.messages import Column, cell
from remuda.model.values.durations import DAY, MINUTE

_log = logging.getLogger("remuda.upkeep")

_NOTABLE: Final = MINUTE
"""Clocks that are set by a server's move back by less than this."""
_AT_ONCE: Final = 1000


def wait_again(core: Core, log: Log, now: int) -> int:
    """Look at all that waits, if the log is ahead of the clock; returns how many messages have to wait again.

    That a message joined its lane is on no record, so this follows from its own due time, or that of its last event.
    """
    ahead = core.recorder.newest - now
    if ahead <= _NOTABLE:
        return 0
    count = 0
    for queue in core.queues.values():
        queue.release_due(now)  # and what came behind messages that were taken to be due
        early = [found for run in _waiting(queue) for found in _early(queue, log, *run, now)]
        for due, offset in early:
            queue.wait_until(due, offset, 1)
        count += len(early)
    if count:
        _log.warning(
            "the log was last written by a clock %.1f days ahead of this one: %d message%s, taken to be due by then, "
            "wait again", ahead / DAY, count, "" if count == 1 else "s",
        )  # fmt: skip
    return count


def _waiting(queue: Queue) -> list[tuple[int, int]]:
    return [
        (at, min(first + count - at, _AT_ONCE))
        for _, _, level in queue.ready.levels()
        for first, count, _ in level.runs()
        for at in range(first, first + count, _AT_ONCE)
    ]


def _early(queue: Queue, log: Log, first: int, count: int, now: int) -> Iterator[tuple[int, int]]:
    """When each of these messages is due, and its offset, if that is later than now."""
    try:
        fetched = log.fetch([(first, count)])
    except RemudaError:  # what cannot be read keeps its place
        return
    dues: Column[int | None] = fetched.messages.due
    offsets = (offset for start, size in fetched.offsets for offset in range(start, start + size))
    for row, offset in enumerate(offsets):
        due: int | None = cell(dues, row)
        if due is None or due <= now or offset in queue.attempts:
            continue  # what was tried once may be tried again
        events = [event for _, event in log.events_of(offset) if event.queue == queue.name]
        due = events[-1].due if events else due
        if due is not None and due > now:
            yield due, offset
