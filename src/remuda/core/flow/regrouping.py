"""A queue whose rules of flow changed: its messages wait by key from now on, or no longer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from remuda.core.flow.buckets import carried
from remuda.core.flow.flow import Flow
from remuda.core.flow.keyed import KeyedMessages
from remuda.core.flow.keys import KeyColumn
from remuda.core.flow.moving import KeyedDelays, KeyedFlights
from remuda.core.queues.delayed import DelayedMessages
from remuda.core.queues.ranges import MessageRange, RangeMap
from remuda.core.queues.ready import ReadyMessages

if TYPE_CHECKING:
    from remuda.core.queues.queue import Queue


def regroup(queue: Queue, now: int) -> None:
    before, flow, highest = queue.flow, Flow(queue.options) if queue.options.has_flow else None, queue.highest
    queue.flow = flow
    if before is not None and flow is not None:
        flow.due = carried(before.bucket, flow.bucket, before.due, now)
        flow.started = before.started
    rules, old = None if flow is None else flow.rules, queue.keyed
    if rules is None and old is None:
        return
    lanes = [(priority, front, list(level.runs())) for priority, front, level in queue.ready.levels()]
    if queue.options.ordered and (before is None or before.rules is None or not before.rules.ordered):
        lanes = [(0, False, sorted(run for _, _, runs in lanes for run in runs))]  # as they were published
    flights, delayed = _capped(queue.flights, highest), _capped(queue.delayed, highest)
    queue.keyed = None
    if rules is None or (old is not None and old.rules.header != rules.header):
        queue.keys = KeyColumn()  # keys of another kind are learned anew
    if rules is None or flow is None:
        queue.ready, queue.flights, queue.delayed = ReadyMessages(), RangeMap(), DelayedMessages()
    else:
        queue.keyed = flow.keyed = ready = KeyedMessages(queue.keys, rules)
        if old is not None and old.rules.header == rules.header:
            ready.follow(old, now)
        queue.ready, queue.flights, queue.delayed = ready, KeyedFlights(ready), KeyedDelays(ready)
    for priority, front, runs in lanes:
        for first, count, deadline in runs:
            queue.ready.add(min(priority, highest), front, first, count, deadline)
    for piece in flights:
        queue.flights.add(piece)
    for piece in delayed:
        queue.delayed.add(piece)


def _capped(pieces: Iterable[MessageRange], highest: int) -> list[MessageRange]:
    return [
        piece if piece.priority <= highest else msgspec.structs.replace(piece, priority=highest) for piece in pieces
    ]
