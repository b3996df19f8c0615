"""Rules of flow as they ought to hold: which message may go out now, what its going out uses up,
and which messages a queue wants at all (F1-F5).

Like the model, it knows the records of the log, and none of the core's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from remuda.model.message import Message
from remuda.model.queues.options import OnRetry, QueueOptions, Singleton
from remuda.model.queues.rates import rate

if TYPE_CHECKING:
    from tests.simulation.model import Model, QueueModel

FAIR = 2
"""How often another key may go before one that could go as well."""


@dataclass
class Spent:
    """What a queue's rates and paused keys have come to."""

    due: float = 0.0
    key_dues: dict[str | None, float] = field(default_factory=dict)
    pauses: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    """Since when messages of a key come of which the last wins, or until when the first is enough."""
    passed: dict[str | None, Counter[str | None]] = field(default_factory=dict)
    """How often others went before a key that could go as well."""
    known: bool = True
    """Whether no power loss took what it was made from."""
    mixed: bool = False
    """Whether keys went ahead by their priorities, which cost them turns, since more than one waits."""
    paced: bool = True
    """Whether it is known when rates open: the clock never went back at a restart."""

    def configured(self, before: QueueOptions, options: QueueOptions, time: int) -> None:
        self.passed.clear()
        if before.flow_key != options.flow_key:
            self.key_dues.clear()
            self.pauses.clear()
            self.marks.clear()
        self.due = carried(before.rate, options.rate, self.due, time)
        for key, due in self.key_dues.items():
            self.key_dues[key] = carried(rate_of(before, key), rate_of(options, key), due, time)
        if [bool(before.debounce), bool(before.throttle)] != [bool(options.debounce), bool(options.throttle)]:
            self.marks.clear()
        if not options.has_flow:
            self.due = 0.0
        if not options.takes_turns:
            self.key_dues.clear()
            self.pauses.clear()
            self.marks.clear()

    def restarted(self) -> None:
        self.passed.clear()

    def clock_went_back(self) -> None:
        """What was due by a clock that was ahead is due earlier; here no later than at once."""
        self.due, self.paced = 0.0, False
        self.key_dues.clear()


RULES = (
    "concurrency", "rate", "limits", "ordered", "on_retry", "flow_key", "concurrency_per_key", "rate_per_key",
    "key_limits", "fair", "weights", "debounce", "throttle", "singleton",
)  # fmt: skip


def regroup(queue: QueueModel, after: QueueOptions) -> None:
    """The rules of a queue change: where it looked at keys, or does so now, what waits lines up anew."""
    before = queue.options
    if all(getattr(before, name) == getattr(after, name) for name in RULES):
        return
    if before.takes_turns:
        for line in queue.lanes:
            line.sort()
    if after.ordered and not before.ordered:
        waiting, queue.lines = sorted(queue.waiting), {}
        for entry in queue.entries.values():
            entry.priority = entry.priority if entry.state in "EIN" else 0  # parked ones keep theirs
        for offset in waiting:
            queue.entries[offset].ahead = False
            queue.lines.setdefault((0, False), []).append(offset)
    if after.takes_turns and holds(after):
        waiting, queue.lines = queue.waiting, {}
        for offset in waiting:
            entry = queue.entries[offset]
            entry.ahead = True
            queue.lines.setdefault((entry.priority, True), []).append(offset)
        for line in queue.lanes:
            line.sort()


def named(texts: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, _, value in (text.rpartition("=") for text in texts)}


def key_of(model: Model, queue: QueueModel, offset: int) -> str | None:
    """Raises `KeyError` for a message that a power loss took."""
    return key_in(queue.options, model.messages[offset])


def key_in(options: QueueOptions, message: Message) -> str | None:
    kind, _, name = options.flow_key.partition(":")
    own = message.headers.get("remuda-flow-key")
    if own is not None:
        return own
    return message.headers.get(name) if kind == "header" else message.key


def weight_of(model: Model, offset: int) -> int:
    message = model.messages.get(offset)
    return 1 if message is None else int(message.headers.get("remuda-flow-weight", "1"))


def carried(before: str | None, after: str | None, due: float, time: int) -> float:
    """When the next start is due once the rate has changed: what was started ahead of it counts as before."""
    if before is None or after is None:
        return 0.0
    return due if due <= time else time + (due - time) * (rate(after).interval / rate(before).interval)


def opens(text: str | None, due: float) -> int:
    """When the next start is allowed by a rate."""
    if text is None:
        return 0
    wanted = rate(text)
    return ceil(due - (wanted.at_once - 1) * wanted.interval)


def spent(text: str | None, due: float, time: int, weight: int) -> float:
    return due if text is None else max(due, time) + weight * rate(text).interval


def holds(options: QueueOptions) -> bool:
    return options.on_retry is OnRetry.HOLD or (options.ordered and options.on_retry is OnRetry.AUTO)


def most_of(options: QueueOptions, key: str | None) -> int:
    own = named(options.key_limits).get(key or "", "")
    if own.isdecimal() and key is not None:
        return int(own)
    return 1 if options.ordered else options.concurrency_per_key


def rate_of(options: QueueOptions, key: str | None) -> str | None:
    own = named(options.key_limits).get(key or "", "")
    return own if own and not own.isdecimal() and key is not None else options.rate_per_key


def members(model: Model, limit: str) -> Iterator[tuple[QueueModel, str]]:
    for queue in model.queues.values():
        value = named(queue.options.limits).get(limit)
        if value is not None:
            yield queue, value


def shared_rate(model: Model, limit: str) -> str | None:
    """Where queues say different rates, the slowest holds."""
    rates = [value for _, value in members(model, limit) if not value.isdecimal()]
    return max(rates, key=lambda one: rate(one).interval, default=None)


def shared_slots(model: Model, limit: str) -> tuple[int, int] | None:
    """How many of a shared limit are used, of how many."""
    slots = [int(value) for _, value in members(model, limit) if value.isdecimal()]
    used = sum(len(queue.flying()) for queue, _ in members(model, limit))
    return (used, min(slots)) if slots else None


def objection_to_queue(model: Model, queue: QueueModel, time: int) -> str:
    """Why nothing of a queue may go out now; empty if something may."""
    options, flying = queue.options, len(queue.flying())
    if options.concurrency and flying >= options.concurrency:
        return f"F2: {flying} are in flight of {options.concurrency}"
    if time < opens(options.rate, queue.spent.due):
        return f"F3: the rate {options.rate} opens at {opens(options.rate, queue.spent.due)}, it is {time}"
    for limit in named(options.limits):
        slots = shared_slots(model, limit)
        if slots is not None and slots[0] >= slots[1]:
            return f"F2: {slots[0]} are in flight of {slots[1]} that share {limit}"
        text = shared_rate(model, limit)
        if time < opens(text, model.shared_dues.get(limit, 0.0)):
            return f"F3: the rate {text} that is shared as {limit} is not open at {time}"
    return ""


def objection_to_key(model: Model, queue: QueueModel, key: str | None, time: int) -> str:
    """Why nothing of a key may go out now."""
    options = queue.options
    same = [at for at, one in queue.entries.items() if one.state != "E" and key_of(model, queue, at) == key]
    flying = [at for at in queue.flying() if at in same]
    most = most_of(options, key)
    if most and len(flying) >= most:
        return f"F2: {flying} of key {key} are in flight, of {most}"
    if holds(options):
        again = [at for at in same if _is_tried_again(queue, at)]
        if again:
            return f"F1: {again} of key {key} are to be tried again"
    if key is not None and max(time, model.latest) < queue.spent.pauses.get(key, 0):
        return f"F3: key {key} is paused until {queue.spent.pauses[key]}, it is {time}"
    if time < opens(rate_of(options, key), queue.spent.key_dues.get(key, 0.0)):
        return f"F3: the rate {rate_of(options, key)} of key {key} is not open at {time}"
    return ""


def _is_tried_again(queue: QueueModel, offset: int) -> bool:
    entry = queue.entries[offset]
    return entry.state == "R" or (offset in queue.later and entry.redelivered)


def lines(model: Model, queue: QueueModel) -> dict[str | None, list[int]]:
    """What waits, by key, in its order within the key."""
    found: dict[str | None, list[int]] = {}
    for offset in queue.waiting:
        found.setdefault(key_of(model, queue, offset), []).append(offset)
    if holds(queue.options):
        for line in found.values():
            line.sort(key=lambda at: (-queue.entries[at].priority, at))
    return found


def objection(model: Model, queue: QueueModel, offset: int, time: int) -> str:
    """Why this message may not go out now."""
    told = objection_to_queue(model, queue, time)
    if told or not queue.options.takes_turns:
        return told
    try:
        key, waiting = key_of(model, queue, offset), lines(model, queue)
        if waiting[key][0] != offset:
            return f"F1: {waiting[key][0]} of key {key} comes first"
        return objection_to_key(model, queue, key, time) or _unfair(model, queue, key, waiting, time)
    except KeyError:
        return ""  # a power loss took a message that the core remembers


def _unfair(model: Model, queue: QueueModel, key: str | None, waiting: dict[str | None, list[int]], time: int) -> str:
    """F5: whether another key that could go has waited for too many of this one."""
    passed = queue.spent.passed
    passed.pop(key, None)
    if not queue.spent.paced:
        return ""  # others may wait for their rates
    if len(waiting) == 1:
        queue.spent.mixed = False
    if len({queue.entries[at].priority for line in waiting.values() for at in line}) > 1:
        queue.spent.mixed = True
    if queue.options.weights or queue.spent.mixed:
        passed.clear()
        return ""
    for other in waiting.keys() - {key}:
        if objection_to_key(model, queue, other, time):
            passed.pop(other, None)
            continue
        count = passed.setdefault(other, Counter())
        count[key] += 1
        if count[key] > FAIR:
            return f"F5: key {key} went {count[key]} times before key {other}, which could go"
    return ""


def spend(model: Model, queue: QueueModel, offset: int, time: int) -> None:
    """A message went out."""
    options, weight = queue.options, weight_of(model, offset)
    queue.spent.due = spent(options.rate, queue.spent.due, time, weight)
    for limit in named(options.limits):
        text = shared_rate(model, limit)
        if text is not None:
            model.shared_dues[limit] = spent(text, model.shared_dues.get(limit, 0.0), time, weight)
    if options.takes_turns and offset in model.messages:
        key = key_of(model, queue, offset)
        text = rate_of(options, key)
        if text is not None:
            queue.spent.key_dues[key] = spent(text, queue.spent.key_dues.get(key, 0.0), time, weight)


def merges(options: QueueOptions) -> bool:
    return bool(options.debounce or options.throttle) or options.singleton is not Singleton.NO


def replaces(options: QueueOptions) -> bool:
    return bool(options.debounce) or options.singleton is Singleton.REPLACE


def settled(model: Model, queue: QueueModel, message: Message, created: int) -> int:
    """When a message that comes may go: at once, or once its key has been quiet (F4)."""
    options, key, due = queue.options, key_in(queue.options, message), message.due or 0
    marks = queue.spent.marks
    if key is None or not (options.debounce or options.throttle):
        return due
    if options.throttle:
        marks[key] = created + options.throttle
        return due
    if not waits(model, queue, key):
        marks[key] = created
    marks.setdefault(key, created)
    quiet = created + options.debounce
    return max(min(quiet, marks[key] + options.max_wait) if options.max_wait else quiet, due)


def waits(model: Model, queue: QueueModel, key: str | None, but: int = -1) -> bool:
    """Whether a message of this key waits, other than this one."""
    waiting = [at for at in (*queue.waiting, *queue.delayed()) if at != but and at in model.messages]
    return any(key_of(model, queue, at) == key for at in waiting)


def went(model: Model, queue: QueueModel, offset: int) -> None:
    """A message does not wait any more: the next of its key begins anew to wait for quiet."""
    if queue.options.debounce and offset in model.messages:
        key = key_of(model, queue, offset)
        if key is not None and not waits(model, queue, key, but=offset):
            queue.spent.marks.pop(key, None)


class Merging:
    """Which messages of a batch one queue wants, by the rules that want fewer of a key (F4)."""

    def __init__(self, model: Model, queue: QueueModel) -> None:
        self.queue = queue
        self.seen: set[str] = set()
        self.marks = dict(queue.spent.marks)
        self.known = queue.spent.known
        self.live: dict[str | None, int] = {}
        """The newest live message of each key."""
        self.last: dict[str | None, int] = {}
        """The newest that ended."""
        if merges(queue.options):
            for found, offsets in ((self.live, live_in(queue)), (self.last, queue.ended), (self.last, queue.parked())):
                for at in offsets:
                    if at in model.messages:
                        key = key_of(model, queue, at)
                        found[key] = max(found.get(key, at), at)
                    else:
                        self.known = False  # a power loss took it
        self.waiting = {*queue.waiting, *queue.delayed()}

    def word(self, message: Message, now: int) -> str | None:
        """`skipped`, `replaced`, or empty for one more; None if it is not known."""
        options, key = self.queue.options, key_in(self.queue.options, message)
        if key is None or not merges(options):
            return ""
        if key in self.seen:
            return "replaced" if replaces(options) else "skipped"
        if not self.known:
            return None
        if replaces(options):
            newest = self.live.get(key, -1)
            if newest in self.waiting and self.last.get(key, -1) > newest:
                return None  # a restart forgets that a newer one came and is done
            return "replaced" if newest in self.waiting else ""
        if options.throttle:
            return "skipped" if 0 < self.marks.get(key, 0) - now <= options.throttle else ""
        return "skipped" if key in self.live else ""


def live_in(queue: QueueModel) -> list[int]:
    return [*queue.waiting, *queue.delayed(), *queue.flying()]


def may_go(model: Model, queue: QueueModel, time: int, *, ticked: bool) -> bool:
    """Whether somebody who is free would have to get a message. What opens by itself is seen at the next tick."""
    options = queue.options
    if not queue.spent.known or not queue.spent.paced:
        return False
    timed = options.rate is not None or any(shared_rate(model, limit) for limit in named(options.limits))
    if (timed and not ticked) or objection_to_queue(model, queue, time):
        return False
    if not options.takes_turns:
        return True
    try:
        keys = lines(model, queue).keys()
        timed_keys = {key for key in keys if rate_of(options, key) is not None or key in queue.spent.pauses}
        if any(until > time for until in queue.spent.pauses.values()):
            return False
        return any((ticked or key not in timed_keys) and not objection_to_key(model, queue, key, time) for key in keys)
    except KeyError:
        return False
