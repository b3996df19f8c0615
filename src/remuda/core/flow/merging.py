"""One message of a key instead of many (F4): debounce, throttle and singleton, decided when messages are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from remuda.core.flow.keyed import KeyedMessages
from remuda.core.flow.keys import KEYLESS
from remuda.core.queues.queue import Queue
from remuda.model.messages import Column, Messages, cell

SKIPPED: Final = "skipped"
REPLACED: Final = "replaced"


class Merged(NamedTuple):
    """What becomes of a batch."""

    queues: Column[tuple[str, ...]]
    """The queues that each message goes to after all."""
    words: dict[int, str]
    """Rows that a queue skips, or that take the place of one that waits."""
    replaced: list[tuple[str, int]]
    """Messages that give up their place: queue and offset."""


def merge(messages: Messages, routes: Column[tuple[str, ...]], queues: Mapping[str, Queue], now: int) -> Merged:
    """Apply the rules of each queue to the rows of a batch that go there, one after the other."""
    shared = routes if isinstance(routes, tuple) else None
    kept = [list(shared or routes[row]) for row in range(len(messages.bodies))]
    words: dict[int, str] = {}
    replaced: list[tuple[str, int]] = []
    seen: dict[tuple[str, int], int] = {}
    for row, names in enumerate(kept):
        for name in list(names):
            queue = queues[name]
            if not queue.merges or queue.keyed is None:
                continue
            number = queue.keyed.rules.number(cell(messages.key, row), cell(messages.headers, row))
            if number == KEYLESS:
                continue
            before = seen.get((name, number))
            if _first_wins(queue, queue.keyed, number, now, before is not None):
                names.remove(name)
                words[row] = SKIPPED
                continue
            if queue.replaces and before is not None:
                kept[before].remove(name)
                words[before], words[row] = SKIPPED, REPLACED
            elif queue.replaces and (waiting := queue.keyed.newest(number)) >= 0 and _waits(queue, waiting):
                replaced.append((name, waiting))
                words[row] = REPLACED
            seen[name, number] = row
    return Merged(_column(kept), words, replaced)


def _first_wins(queue: Queue, keyed: KeyedMessages, number: int, now: int, seen: bool) -> bool:
    """Whether one of this key is enough for now."""
    if queue.replaces:
        return False
    if queue.options.throttle:
        return seen or keyed.quiet_until(number) > now
    return seen or keyed.lives(number)


def _waits(queue: Queue, offset: int) -> bool:
    return bool(queue.ready.overlap(offset, 1) or queue.delayed.find(offset, 1))


def _column(rows: Sequence[list[str]]) -> Column[tuple[str, ...]]:
    routes = [tuple(names) for names in rows]
    return routes[0] if routes.count(routes[0]) == len(routes) else routes
