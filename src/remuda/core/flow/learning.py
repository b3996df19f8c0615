"""Keys of messages that a queue did not see being published: from another queue, or before it had rules."""

from __future__ import annotations

from collections.abc import Callable

from remuda.core.extensions import FactsOf
from remuda.core.flow.keys import KEYLESS, UNKNOWN
from remuda.core.flow.rules import said
from remuda.core.queues.queue import Queue
from remuda.model.queues.flow_info import FLOW_WEIGHT

IsHere = Callable[[int], bool]
"""Whether the queue still has the message at an offset."""


def unlearned(queue: Queue) -> list[tuple[int, int]]:
    """Runs of waiting messages whose keys are not known yet, in their order: so they keep it within each key."""
    key = None if queue.keyed is None else queue.keyed.find(UNKNOWN)
    if key is None or key.line is None:
        return []
    return [(first, count) for _, _, level in key.line.levels() for first, count, _ in level.runs()]


def learn_keys(queue: Queue, first: int, count: int, facts_of: FactsOf, is_here: IsHere) -> None:
    """Note the keys of these messages."""
    if queue.keyed is None:
        return
    for offset in range(first, first + count):
        if queue.keys.get(offset) == UNKNOWN and (is_here(offset) or queue.parked.find(offset, 1)):
            facts = facts_of(offset)
            number = KEYLESS if facts is None else queue.keyed.rules.number(facts.key, facts.headers)
            queue.learn_key(offset, number)


def charge_unknown(queue: Queue, facts_of: FactsOf) -> None:
    """After recovery: what started while its key was not known counts for the rate of its key."""
    keyed = queue.keyed
    if keyed is None:
        return
    started, keyed.unknown = keyed.unknown, []
    for offset, time in started:
        facts = facts_of(offset)
        if facts is not None:
            weight = said(facts.headers, FLOW_WEIGHT) or 1
            keyed.charge(keyed.rules.number(facts.key, facts.headers), time, weight)
