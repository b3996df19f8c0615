"""What the rules of a queue hold back, for people (F7). It looks at every key once, and asks the log for a few."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice

from remuda.core.extensions import MessageFacts
from remuda.core.flow.flow import Flow
from remuda.core.flow.key_state import Key
from remuda.core.flow.keyed import KeyedMessages
from remuda.core.queues.queue import Queue
from remuda.core.queues.ready import NEVER
from remuda.model.queues.flow_info import FlowInfo, HeldBy, KeyInfo

Facts = Callable[[int], MessageFacts | None]


def shown(queue: Queue, facts: Facts, now: int, limit: int) -> FlowInfo:
    flow, keyed = queue.flow, queue.keyed
    if flow is None:
        return FlowInfo()
    held_by, until = _queue_held(flow, now, queue.flights.size)
    at = flow.opens(now, queue.flights.size)
    opens = at if now < at < NEVER else None
    if keyed is None:
        return FlowInfo(held_by, until, opens=opens, waiting={held_by: queue.ready.size} if queue.ready.size else {})
    live = [key for key in keyed.known() if key.lives]
    waiting: dict[HeldBy, int] = {}
    held = 0
    for key in live:
        if key.line is not None:
            why = _key_held(keyed, key, now)[0]
            held += why is not HeldBy.NOTHING
            why = why or held_by
            waiting[why] = waiting.get(why, 0) + key.line.size
    singles = keyed.singles
    if singles.size:  # nothing but the queue holds them
        waiting[held_by] = waiting.get(held_by, 0) + singles.size
    busy = heapq.nlargest(limit, live, key=_rank)
    found = [_key(keyed, key, facts, now) for key in busy]
    found += [KeyInfo(_name(keyed, facts(at)), 1, 0) for at in islice(singles.offsets(), limit)]
    top = heapq.nlargest(limit, found, key=_most)
    return FlowInfo(held_by, until, len(live) + singles.size, held, opens, waiting, top)


def _queue_held(flow: Flow, now: int, in_flight: int) -> tuple[HeldBy, int | None]:
    if flow.most and in_flight >= flow.most:
        return HeldBy.CONCURRENCY, None
    if flow.bucket is not None and (at := flow.bucket.opens(flow.due, now)) > now:
        return HeldBy.RATE, at
    for limit in flow.shared:
        at = limit.opens(now)
        if at > now:
            return HeldBy.LIMIT, at if at < NEVER else None
    return HeldBy.NOTHING, None


def _key(keyed: KeyedMessages, key: Key, facts: Facts, now: int) -> KeyInfo:
    name = _name(keyed, facts(key.newest if key.line is None else key.line.head()[1]))
    waiting = 0 if key.line is None else key.line.size
    held_by, until = _key_held(keyed, key, now)
    since = key.since or None if held_by is not HeldBy.NOTHING and waiting else None
    return KeyInfo(name, waiting, key.running, key.later, held_by, since, until)


def _name(keyed: KeyedMessages, facts: MessageFacts | None) -> str | None:
    return None if facts is None else keyed.rules.text(facts.key, facts.headers)


def _key_held(keyed: KeyedMessages, key: Key, now: int) -> tuple[HeldBy, int | None]:
    most = keyed.rules.most_of(key.number, key.most)
    if key.held:
        return HeldBy.RETRY, None
    if key.paused > now:
        return HeldBy.PAUSE, key.paused if key.paused < NEVER else None
    if most and key.running >= most:
        return HeldBy.CONCURRENCY, None
    at = keyed.opens_at(key, now)
    return (HeldBy.RATE, at) if at > now else (HeldBy.NOTHING, None)


def _rank(key: Key) -> tuple[int, int]:
    return 0 if key.line is None else key.line.size, key.running


def _most(one: KeyInfo) -> tuple[int, int]:
    return one.waiting, one.in_flight
