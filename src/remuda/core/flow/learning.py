"""Keys and weights of messages that a queue did not see being published: from another queue, or before it had rules."""

from __future__ import annotations

from collections.abc import Callable

from remuda.core.extensions import FactsOf
from remuda.core.flow.keys import KEYLESS, UNKNOWN
from remuda.core.flow.rules import said
from remuda.core.queues.queue import Queue
from remuda.model.queues.flow_info import FLOW_WEIGHT

IsHere = Callable[[int], bool]
"""Whether the queue still has the message at an offset."""


def learn_keys(queue: Queue, first: int, count: int, facts_of: FactsOf, is_here: IsHere) -> None:
    """Note the keys of these messages, and what they weigh."""
    if queue.weighs:
        _learn_weights(queue, first, count, facts_of, is_here)
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


def _learn_weights(queue: Queue, first: int, count: int, facts_of: FactsOf, is_here: IsHere) -> None:
    for offset in range(first, first + count):
        facts = facts_of(offset)
        weight = 0 if facts is None else said(facts.headers, FLOW_WEIGHT)
        if weight > 1 and is_here(offset):
            queue.weights[offset] = weight
