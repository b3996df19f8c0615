"""One message of a key instead of many (F4): debounce, throttle and singleton, decided when messages are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from remuda.core.flow.keyed import KeyedMessages
from remuda.core.flow.keys import KEYLESS
from remuda.core.queues.queue import Queue
from remuda.model.messages import Column, Messages, cell
from remuda.model.queues.options import Singleton

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


class Fates:
    """What becomes of a batch's messages in one queue that wants fewer of a key, one row after the other."""

    __slots__ = ("_keyed", "_now", "_queue", "seen")

    def __init__(self, queue: Queue, keyed: KeyedMessages, now: int) -> None:
        self._queue = queue
        self._keyed = keyed
        self._now = now
        self.seen: dict[int, int] = {}
        """The keys of earlier rows that the queue takes, with the last of these rows."""

    def number(self, messages: Messages, row: int) -> int:
        return self._keyed.rules.number(cell(messages.key, row), cell(messages.headers, row))

    def word(self, number: int) -> str:
        """Whether the next message of this key is skipped, or takes the place of another; empty if it is one more."""
        if number == KEYLESS:
            return ""
        seen, queue = number in self.seen, self._queue
        if queue.replaces:
            return REPLACED if seen or self.waiting(number) >= 0 else ""
        if queue.options.throttle:
            key = self._keyed.find(number)
            quiet = 0 if key is None else key.mark - self._now  # longer than the option only by a clock that was ahead
            return SKIPPED if seen or 0 < quiet <= queue.options.throttle else ""
        return SKIPPED if seen or self._lives(number) else ""

    def _lives(self, number: int) -> bool:
        """Whether a message of this key waits or is in flight."""
        key = self._keyed.find(number)
        return self._keyed.singles.find(number) >= 0 if key is None else key.lives

    def waiting(self, number: int) -> int:
        """The newest message of a key, if it waits; else -1."""
        key = self._keyed.find(number)
        newest = self._keyed.singles.find(number) if key is None else key.newest
        waits = newest >= 0 and (self._queue.ready.overlap(newest, 1) or self._queue.delayed.find(newest, 1))
        return newest if waits else -1


def fates_of(queue: Queue, now: int) -> Fates | None:
    """None if the queue takes whatever it has room for."""
    alone = queue.merges or queue.options.singleton is Singleton.REFUSE
    return Fates(queue, queue.keyed, now) if alone and queue.keyed is not None else None


def merge(messages: Messages, routes: Column[tuple[str, ...]], queues: Mapping[str, Queue], now: int) -> Merged:
    """Apply the rules of each queue to the rows of a batch that go there, one after the other."""
    shared = routes if isinstance(routes, tuple) else None
    kept = [list(shared or routes[row]) for row in range(len(messages.bodies))]
    names = {name for route in kept for name in route if queues[name].merges}
    fates = {name: found for name in names if (found := fates_of(queues[name], now)) is not None}
    words: dict[int, str] = {}
    replaced: list[tuple[str, int]] = []
    for row, route in enumerate(kept):
        for name in [name for name in route if name in fates]:
            fate = fates[name]
            number = fate.number(messages, row)
            word = fate.word(number)
            if word == SKIPPED:
                route.remove(name)
                words[row] = word
                continue
            if word == REPLACED:
                words[row] = word
                before = fate.seen.get(number)
                if before is None:
                    replaced.append((name, fate.waiting(number)))
                else:
                    kept[before].remove(name)
                    words[before] = SKIPPED
            fate.seen[number] = row
    return Merged(_column(kept), words, replaced)


def _column(rows: Sequence[list[str]]) -> Column[tuple[str, ...]]:
    routes = [tuple(names) for names in rows]
    return routes[0] if routes.count(routes[0]) == len(routes) else routes
